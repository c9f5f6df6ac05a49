"""Amounts with their units, as the command line gives them: ``25Gbit``, ``80GB``, ``20us``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hvdtrain.errors import ConfigError

_NUMBER = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z/]+)")
_PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

_BYTES = {f"{prefix}B": float(factor) for prefix, factor in (_PREFIXES | _BINARY).items()}
_BITS = {f"{prefix}bit": factor / 8 for prefix, factor in (_PREFIXES | _BINARY).items()}
_PER_S = {f"{unit}{ending}": factor for unit, factor in (_BYTES | _BITS).items() for ending in ("", "/s")}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def parse_bytes(option: str, text: str) -> float:
    """Return an amount of memory in bytes.

    Example:
        >>> parse_bytes("--memory", "80GB"), parse_bytes("--memory", "1.5 GiB")
        (80000000000.0, 1610612736.0)

    Raises:
        ConfigError: No number above 0, or another unit than bytes.
    """
    return _parse(option, text, _BYTES, "80GB or 16GiB")


def parse_bandwidth(option: str, text: str) -> float:
    """Return a bandwidth in bytes per second; ``/s`` may be left out.

    Example:
        >>> parse_bandwidth("--bandwidth", "25Gbit"), parse_bandwidth("--bandwidth", "100MB/s")
        (3125000000.0, 100000000.0)

    Raises:
        ConfigError: No number above 0, or another unit than bits or bytes.
    """
    return _parse(option, text, _PER_S, "25Gbit or 100MB/s")


def parse_seconds(option: str, text: str) -> float:
    """Return a time in seconds.

    Example:
        >>> parse_seconds("--latency", "20us"), parse_seconds("--latency", "1ms")
        (2e-05, 0.001)

    Raises:
        ConfigError: No number above 0, or another unit than seconds.
    """
    return _parse(option, text, _SECONDS, "20us or 1ms")


def _parse(option: str, text: str, units: Mapping[str, float], examples: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    if found is None or found[2] not in units or float(found[1]) <= 0:
        known = ", ".join(unit for unit in units if not unit.endswith("/s"))
        raise ConfigError(
            f"plan: {option} must be a number above 0 with one of the units {known}, got {text!r}. "
            f"Write it as {examples}; capitals count."
        )
    # Dividing keeps 20us and 0.00002s the same number.
    factor = units[found[2]]
    return float(found[1]) * factor if factor >= 1 else float(found[1]) / round(1 / factor)
