"""Several numbers of ranks in one option, such as ``-np 1,2,4``."""

from __future__ import annotations


def parse_sizes(command: str, text: str) -> tuple[int, ...]:
    """Return different numbers of ranks, the smallest first.

    Raises:
        ConfigError: Something else than numbers from 1.
    """
    from hvdtrain.errors import ConfigError

    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"{command}: -np must be numbers from 1, such as 1,2,4, got {text!r}.")
    return sizes
