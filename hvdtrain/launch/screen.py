"""Where the launcher writes: the text of ranks as it comes, and on a terminal one live line below it."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping
from contextlib import suppress

#: Goes to the start of the line and empties it.
_ERASE = b"\r\x1b[K"


def write_all(target: int, text: bytes) -> None:
    """Write everything to a descriptor; where nobody reads any more it is dropped, and ranks train on."""
    view = memoryview(text)
    with suppress(OSError):
        while view:
            try:
                view = view[os.write(target, view) :]
            except BlockingIOError:  # a terminal or a pipe that somebody has set so
                select.select([], [target], [], 1.0)


def columns_of(target: int, environ: Mapping[str, str] = os.environ) -> int:
    """Return the columns of the terminal behind a descriptor, 0 where there is none that can go back in a line."""
    if environ.get("TERM", "dumb") == "dumb":
        return 0
    try:
        return os.get_terminal_size(target).columns if os.isatty(target) else 0
    except OSError:
        return 0


class Screen:
    """Standard output and standard error of the launcher, which several threads write to.

    The live line is drawn on standard error where that is a terminal, taken away before other text, and drawn again
    once that text has ended its line; so no line of a rank is ever cut.
    """

    def __init__(self) -> None:
        """Show nothing yet."""
        self._lock = threading.RLock()  # a signal may come while its thread writes
        self._live = b""
        self._is_drawn = False
        self._in_line: dict[int, bool] = {}

    def write(self, target: int, text: bytes) -> None:
        """Write text of a rank, or of the launcher itself, to a descriptor."""
        with self._lock:
            self._erase()
            write_all(target, text)
            self._in_line[target] = not text.endswith(b"\n")
            self._draw()

    def show(self, text: bytes) -> None:
        """Show one line in place of the one before, cut to the width of the terminal; empty for none."""
        with self._lock:
            self._erase()
            self._live = text
            self._draw()

    def _erase(self) -> None:
        if self._is_drawn:
            write_all(2, _ERASE)
            self._is_drawn = False

    def _draw(self) -> None:
        columns = columns_of(2) if self._live and not any(self._in_line.values()) else 0
        if columns:
            shown = self._live.decode(errors="replace")[: columns - 1]  # a full last column would wrap on some
            write_all(2, shown.encode())
            self._is_drawn = True
