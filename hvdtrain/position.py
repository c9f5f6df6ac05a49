"""Where a rank stands: phase, step, and the line of code that its main thread is at.

The main thread moves it; the thread of :mod:`hvdtrain.watchdog` reads it, also while the main thread is stuck.
"""

from __future__ import annotations

import faulthandler
import re
import sysconfig
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

Phase = Literal[
    "import", "start", "data", "forward and backward", "reduce", "update", "callback", "evaluate", "save", "stop"
]

_PACKAGE = str(Path(__file__).parent)
_CONTROL_PLANE = str(Path(__file__).with_name("communicator.py"))
_LIBRARIES = ("<frozen", *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")))

#: Begin the names of threads that read samples while the main thread waits for them.
_LOADERS = ("hvdtrain-prefetch", "hvdtrain-data")

#: The lines of a dump: a thread, then its frames, in which what is not ASCII is escaped.
_THREAD = re.compile(r"(?:Thread|Current thread) 0x(?P<ident>[0-9a-f]+) ")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})")


class Position:
    """Phase, step and a count that grows with everything that is done; one per run and rank.

    Attributes:
        seconds: Time spent in each phase that has ended.
    """

    def __init__(self, phase: Phase = "start") -> None:
        """Stand at the beginning."""
        self.phase: Phase = phase
        self.step = 0
        self.moves = 0
        self.seconds: dict[str, float] = dict.fromkeys(get_args(Phase), 0.0)
        self._entered = time.perf_counter()

    def enter(self, phase: Phase) -> None:
        """Begin another phase."""
        now = time.perf_counter()
        self.seconds[self.phase] += now - self._entered
        self.phase, self._entered = phase, now
        self.moves += 1

    def moved(self) -> None:
        """Tell of progress inside a phase."""
        self.moves += 1


@dataclass(frozen=True)
class CodeLine:
    """A place in the code.

    Attributes:
        text: Such as ``job.py:12 in on_step_end``.
        is_waiting: Whether the thread is inside a collective operation, and so waits for other ranks.
        is_users: Whether the line is neither of this package nor of a library.
    """

    text: str
    is_waiting: bool
    is_users: bool


def find_line(phase: Phase) -> CodeLine:
    """Return the innermost line that means something to the user: of their own code, else of this package.

    While the main thread waits for data, that is a line of the thread that reads the samples.
    """
    stacks = _stacks()
    main = _line_of(stacks, threading.main_thread())
    if phase == "data" and not main.is_users:
        loaders = [thread for thread in threading.enumerate() if thread.name.startswith(_LOADERS)]
        lines = (_line_of(stacks, thread) for thread in loaders)
        return next((line for line in lines if line.is_users), main)
    return main


class _Frame(NamedTuple):
    file: str
    line: int
    function: str


def _line_of(stacks: Mapping[int, Sequence[_Frame]], thread: threading.Thread) -> CodeLine:
    is_waiting = False
    for file, line, function in stacks.get(thread.ident or 0, ()):
        is_own = file.startswith(_PACKAGE)
        if file == _CONTROL_PLANE or (file.endswith("/mpi_ops.py") and function != "<module>"):
            is_waiting = True
        elif is_own or not file.startswith(_LIBRARIES):
            # Files of this package are told with their folder: several have a trainer.py.
            name = str(Path(file).relative_to(Path(_PACKAGE).parent)) if is_own else Path(file).name
            return CodeLine(f"{name}:{line} in {function}", is_waiting, not is_own)
    return CodeLine("outside Python", is_waiting, is_users=False)


def _stacks() -> dict[int, list[_Frame]]:
    """Return what each thread is executing, innermost first, by the thread's identifier.

    Read from a dump of :mod:`faulthandler`, which makes no object. The frame objects of ``sys._current_frames`` are
    made one by one on the way out, each of which may give the interpreter to the thread that is looked at; it then
    returns from the very frame, whose memory is read all the same.
    """
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read().decode("ascii", errors="replace")
    stacks: dict[int, list[_Frame]] = {}
    stack: list[_Frame] = []
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            stack = stacks.setdefault(int(thread["ident"], 16), [])
        elif frame := _FRAME.match(line):
            stack.append(_Frame(_unescaped(frame["file"]), int(frame["line"]), _unescaped(frame["function"])))
    return stacks


def _unescaped(name: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1] or found[2], 16)), name)
