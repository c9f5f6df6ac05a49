"""Numbers as people read them: the same in the header, the progress line, the closing table and the report."""

from __future__ import annotations

import math


def short(value: object) -> str:
    """Return a number with four digits that count, whole numbers in full, and anything else as it is.

    Example:
        >>> [short(value) for value in (0.123456, 12345.678, 36954, None)]
        ['0.1235', '1.235e+04', '36,954', 'n/a']
    """
    if value is None:
        return "n/a"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def rate(per_s: float) -> str:
    """Return a number per second in at most five characters.

    Example:
        >>> [rate(value) for value in (0.25, 242.6, 12345.0, 3.2e6)]
        ['0.25', '243', '12.3k', '3.2M']
    """
    for bound, divisor, unit in ((1e3, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if per_s < bound * 0.9995:
            return f"{per_s / divisor:.3g}{unit}"
    return f"{per_s:.3g}"


def duration(seconds: float) -> str:
    """Return hours, minutes and seconds; days where there are any.

    Example:
        >>> [duration(value) for value in (9.4, 3723, 200000)]
        ['0:09', '1:02:03', '2d 07:33']
    """
    if not math.isfinite(seconds):
        return "unknown"
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def size(num_bytes: float) -> str:
    """Return bytes in binary units.

    Example:
        >>> [size(value) for value in (512, 147816, 1.5 * 2**30)]
        ['512 B', '144 KiB', '1.5 GiB']
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1023.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} TiB"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it is one.

    Example:
        >>> counted(1, "rank"), counted(1438, "sample"), counted(2, "pass")
        ('1 rank', '1,438 samples', '2 passes')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")


def table(rows: list[tuple[str, str]]) -> list[str]:
    """Return lines of a two-column table, indented, the second column aligned.

    Example:
        >>> table([("ranks", "2"), ("steps", "276")])
        ['  ranks  2', '  steps  276']
    """
    width = max((len(name) for name, _ in rows), default=0)
    return [f"  {name:<{width}}  {value}" for name, value in rows]
