"""Options that a job file defines for itself: ``SIZE = hvdtrain.option("size", "tiny", choices=("tiny", "small"))``.

The command line gives them after the job, ``hvdtrain train job.py --size small``, beside those of TrainConfig.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from hvdtrain.errors import ConfigError
from hvdtrain.wording import did_you_mean

T = TypeVar("T", bool, int, float, str)

_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class GivenOptions:
    """Options of one command line, and which of them the job asked for."""

    def __init__(self, values: Mapping[str, str], known: Sequence[str] = ()) -> None:
        """Keep what was given.

        Args:
            values: By name without dashes.
            known: Options of the command itself, with dashes; a wrong name may be near one of them.
        """
        self.values, self.known = dict(values), tuple(known)
        self.asked: dict[str, bool | int | float | str] = {}

    @classmethod
    def parse(cls, words: Sequence[str], known: Sequence[str] = ()) -> GivenOptions:
        """Read ``--name value`` and ``--name=value``; an option without a value is ``true``.

        Raises:
            ConfigError: A word belongs to no option.
        """
        found: dict[str, list[str]] = {}
        last: list[str] | None = None
        for word in words:
            if word.startswith("--") and len(word) > 2:
                name, equals, value = word[2:].partition("=")
                last = found[name.replace("-", "_")] = [value] if equals else []
            elif last is None or word.startswith("--"):
                raise ConfigError(f"hvdtrain train: unexpected argument {word!r}. See 'hvdtrain train --help'.")
            else:
                last.append(word)
        return cls({name: " ".join(values) or "true" for name, values in found.items()}, known)

    def require_all_asked(self, command: str = "train", others: Sequence[str] = ()) -> None:
        """Refuse what neither the job nor ``hvdtrain train`` knows.

        Args:
            command: The command that was given the options, for the message.
            others: Options of that command, which a wrong name may be near too.

        Raises:
            ConfigError: Names the option, and the nearest one.
        """
        for name in self.values.keys() - self.asked.keys():
            option = f"--{name.replace('_', '-')}"
            if option in self.known:
                continue
            own = [f"--{asked.replace('_', '-')}" for asked in self.asked]
            hint = did_you_mean(option, [*self.known, *others, *own])
            raise ConfigError(f"hvdtrain {command}: no such option {option!r}.{hint} See 'hvdtrain {command} --help'.")


_current = GivenOptions({})


@contextmanager
def giving(options: GivenOptions) -> Iterator[None]:
    """Let :func:`option` answer from ``options`` in the body."""
    global _current
    before, _current = _current, options
    try:
        yield
    finally:
        _current = before


def current_options() -> GivenOptions:
    """Return the options that :func:`option` answers from, for a job file that loads another one."""
    return _current


def option(name: str, default: T, *, choices: Sequence[T] = ()) -> T:
    """Return the value of a job's own option; call it where the job file is read.

    Args:
        name: As on the command line, with or without dashes inside: ``size`` is given as ``--size small``.
        default: Value when it is not given; its type is that of the option.
        choices: The only values that are allowed, any when empty.

    Raises:
        ConfigError: The given value is of another type, or none of ``choices``; or the name is one of the command's.

    Example:
        >>> option("size", "tiny", choices=("tiny", "small"))
        'tiny'
    """
    key = name.replace("-", "_")
    if f"--{name.replace('_', '-')}" in _current.known:
        raise ConfigError(f"option: {name!r} is an option of 'hvdtrain train' already. Choose another name.")
    value = default if key not in _current.values else _converted(key, _current.values[key], default)
    if choices and value not in choices:
        told = ", ".join(map(str, choices))
        raise ConfigError(f"--{name} must be one of {told}, got {value!r}.{did_you_mean(value, choices)}")
    _current.asked[key] = value
    return value


def _converted(name: str, text: str, default: T) -> T:
    kind = type(default)
    try:
        return kind(_WORDS[text.lower()]) if kind is bool else kind(text)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"--{name} must be of type {kind.__name__}, got {text!r}.") from error
