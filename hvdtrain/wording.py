"""Numbers as people read them: the same in the header, the progress line, the closing table and the report."""

from __future__ import annotations

import difflib
import math
import textwrap
from collections.abc import Iterable


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


def nearest(word: object, known: Iterable[object], cutoff: float = 0.6) -> str | None:
    """Return the known word that is most like another one, ``None`` where none is near; see :func:`did_you_mean`."""
    near = difflib.get_close_matches(str(word), [str(name) for name in known], n=1, cutoff=cutoff)
    return near[0] if near else None


def did_you_mean(word: object, known: Iterable[object], cutoff: float = 0.6) -> str:
    """Return a question that names the nearest known word, with a space before it; empty where none is near.

    Args:
        word: What was given.
        known: What may be given.
        cutoff: Least likeness of a word that is near, from 0 for all to 1 for the word itself.

    Example:
        >>> did_you_mean("--epoch", ["--epochs", "--seed"]), did_you_mean("jax", ["torch"])
        (" Did you mean '--epochs'?", '')
    """
    near = nearest(word, known, cutoff)
    return "" if near is None else f" Did you mean {near!r}?"


def shortened(text: str, limit: int) -> str:
    """Return the beginning of a text that is longer than ``limit`` characters, and dots.

    Example:
        >>> shortened("hvdtrain train job.py", 16), shortened("job.py", 16)
        ('hvdtrain trai...', 'job.py')
    """
    return text if len(text) <= limit else f"{text[: max(limit - 3, 0)]}..."


def table(rows: list[tuple[str, str]], columns: int = 100) -> list[str]:
    """Return lines of a two-column table, indented, the second column aligned and folded where it is too wide.

    Args:
        rows: Name and value.
        columns: Width that no line exceeds, but for a single word that does.

    Example:
        >>> table([("ranks", "2"), ("steps", "276, 100 done")], columns=16)
        ['  ranks  2', '  steps  276, 100', '         done']
    """
    width = max((len(name) for name, _ in rows), default=0)
    room = max(columns - width - 4, 8)
    lines = []
    for name, value in rows:
        first, *more = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False) or [""]
        lines += [f"  {name:<{width}}  {first}".rstrip(), *(f"  {'':<{width}}  {part}" for part in more)]
    return lines
