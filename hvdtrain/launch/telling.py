"""What ``hvdtrain launch`` and its ranks tell each other.

The launcher speaks by environment variables. Ranks tell the step that begins, and which text is a report, by marks on
standard error, the one road that exists on every host of a launch; the launcher takes them out again. Without a
launcher that asks for them there are none.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress

#: Names the launch, the same in all its attempts; set by a launcher that takes marks out of the stream.
LAUNCHER = "HVDTRAIN_LAUNCHER"

#: How often the ranks have been launched again, from 1; missing in the first attempt.
RESTART = "HVDTRAIN_RESTART"

#: Ranks of the first attempt, which fixed the global batch; set in later ones.
FIRST_RANKS = "HVDTRAIN_FIRST_RANKS"

#: Columns of the launcher's terminal; empty or missing where it has none.
TERMINAL = "HVDTRAIN_TERMINAL"

#: What ranks report when the launcher passes its signal on to them; it puts the name of the one that it got in place.
PASSED_ON = "stopped by SIGUSR1"

#: A mark, wherever it stands in a stream: also behind text without a newline, as progress bars leave it. One with
#: text shows that text as the last line of the terminal, in place of the one before.
MARK = re.compile(rb"\x1ehvdtrain: (?:(step|failed|end) (\d+)|show ([^\n\x1e]*))\n")

#: What begins a mark that has not arrived whole.
OPENING = b"\x1ehvdtrain: "

_BURST, _PER_S = 10.0, 10.0


class RateLimit:
    """Lets ten pass at once, and ten a second in the long run; the first steps after a restart are all told."""

    def __init__(self, now: float) -> None:
        """Begin with the whole burst at hand; ``now`` in seconds, from any clock that only grows."""
        self._left, self._last = _BURST, now

    def allows(self, now: float) -> bool:
        """Return whether one more may pass at ``now``."""
        self._left = min(_BURST, self._left + (now - self._last) * _PER_S)
        self._last = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


_step = 0
_limit = RateLimit(time.monotonic())


def tell_step(step: int, *, is_root: bool) -> None:
    """Remember the step that begins, for a report; the root tells a launcher, some ten times a second.

    Args:
        step: Number of the update, from 1.
        is_root: Whether this rank is the one that speaks.
    """
    global _step
    _step = step
    if is_root and LAUNCHER in os.environ and _limit.allows(time.monotonic()):
        with suppress(OSError):  # nobody has to listen
            os.write(2, _mark("step").encode())


def columns_of_launcher(environ: Mapping[str, str] = os.environ) -> int:
    """Return the columns of the terminal on which a launcher shows a line of this process, 0 where it shows none."""
    told = environ.get(TERMINAL, "") if LAUNCHER in environ else ""
    return int(told) if told.isdecimal() else 0


def show(text: str) -> None:
    """Let the launcher show one line on its terminal, below everything else, until the next one; empty for none."""
    with suppress(OSError):  # nobody has to listen
        os.write(2, f"\x1ehvdtrain: show {text}\n".encode())


def framed(report: str) -> str:
    """Return a report with the exact step and the marks by which a launcher keeps it for the end of its output."""
    return f"{_mark('failed')}{report}{_mark('end')}" if LAUNCHER in os.environ else report


def _mark(kind: str) -> str:
    return f"\x1ehvdtrain: {kind} {_step}\n"
