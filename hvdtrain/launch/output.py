"""The two streams of mpirun: what ranks say goes on as it is, what mpirun says goes into the log, marks go nowhere.

A report that a rank frames (:mod:`hvdtrain.launch.telling`) is kept for the end, so that it stands behind what the
other ranks still have to say.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable

from hvdtrain.launch import telling
from hvdtrain.launch.screen import Screen
from hvdtrain.launch.words import EDGE, HINT, KNOWN_BLOCK, KNOWN_LINE, Ending, find_ending

#: A line may come in pieces; text that is no whole line goes on after this time, as a prompt or a progress bar must.
_PARTIAL_S = 0.2

#: A report waits for the end of the job, but not for longer than this.
_REPORT_S = 15.0

#: Lines of the longest block that mpirun is known to write, with room.
_MAX_BLOCK_LINES = 60

#: Text without a newline above this size goes on at once.
_MAX_PARTIAL_BYTES = 1 << 20

_TAIL_BYTES = 1 << 14
_READ_BYTES = 1 << 16


class Heard:
    """What the launcher has learnt from both streams.

    Attributes:
        step: Number of the step that ranks last told of; ``None`` when they told none.
        words: What mpirun itself has said.
        reports: Reports of ranks, in the order in which they began; the first one tells the cause.
        tail: The last bytes of standard error that came from ranks.
        is_told: Whether the reports have gone on.
        screen: Takes what goes on.
        stopped_by: Number of the first signal to the launcher, 0 for none.
    """

    def __init__(self, log: Callable[[bytes], None]) -> None:
        """Begin with nothing; ``log`` takes what is kept out of the streams."""
        self.log = log
        self.screen = Screen()
        self.stopped_by = 0
        self.step: int | None = None
        self.words: list[bytes] = []
        self.reports: list[bytearray] = []
        self.tail = b""
        self.is_told = False
        self._reported_at = 0.0

    @property
    def has_report(self) -> bool:
        """Whether a rank has said why it ended."""
        return bool(self.reports) or b"Traceback (most recent call last):\n" in self.tail

    def begin_report(self) -> None:
        """Make room for the report of one more rank."""
        self._reported_at = self._reported_at or time.monotonic()
        self.reports.append(bytearray())

    def is_overdue(self) -> bool:
        """Return whether the job should have ended with its report by now, and has not."""
        return bool(self.reports) and not self.is_told and time.monotonic() - self._reported_at > _REPORT_S

    def take_report(self) -> bytes:
        """Return the first report, once; the others go into the log, and one line before it counts them."""
        if self.is_told or not self.reports:
            return b""
        self.is_told = True
        first, *others = self.reports
        for other in others:
            self.log(bytes(other))
        more = f"launch: {len(others)} more reported a failure after this one, told in the log\n" if others else ""
        told = bytes(first)
        if self.stopped_by:
            name = signal.Signals(self.stopped_by).name
            told = told.replace(telling.PASSED_ON.encode(), f"stopped by {name}".encode())
        return more.encode() + told

    def take_words(self, text: bytes) -> None:
        """Keep words of mpirun, in the log too."""
        self.words.append(text)
        self.log(text)

    def find_ending(self) -> Ending | None:
        """Return how the process ended that ended the job; ``None`` where mpirun has named none."""
        return find_ending(b"".join(self.words).decode(errors="replace"))


class Sieve:
    """Takes marks and mpirun's own words out of one stream, fed in pieces of any size."""

    def __init__(self, heard: Heard) -> None:
        """Begin at the start of a line, outside of blocks and reports."""
        self._heard = heard
        self._rest = b""
        self._block: list[bytes] = []
        self._is_reporting = False

    @property
    def is_holding(self) -> bool:
        """Whether text is held back that must go on when nothing else comes."""
        return bool(self._rest or self._block)

    def feed(self, data: bytes) -> bytes:
        """Take the next piece; return what goes on now."""
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        if len(data) - end > _MAX_PARTIAL_BYTES:
            end = len(data)
        whole, self._rest = data[:end], data[end:]
        if not (self._block or self._is_reporting or HINT.search(whole)):
            return whole
        passed, start = [], 0
        for mark in telling.MARK.finditer(whole):
            passed.append(self._lines(whole[start : mark.start()]))
            if mark[1] is None:
                self._heard.screen.show(mark[3])
            else:
                self._take_mark(mark[1], int(mark[2]))
            start = mark.end()
        passed.append(self._lines(whole[start:]))
        return b"".join(passed)

    def release(self) -> bytes:
        """Return the text that has waited for more and goes on as it is; a mark still waits to be whole."""
        block, self._block = b"".join(self._block), []
        if block and KNOWN_BLOCK.match(_first_words(block + self._rest)):
            self._heard.take_words(block + self._rest)
            block = self._rest = b""
        opening = self._rest.find(telling.OPENING[:1])
        end = len(self._rest) if opening < 0 else opening
        passed, self._rest = self._rest[:end], self._rest[end:]
        return self._pass(block + passed)

    def finish(self) -> bytes:
        """Return what is left at the end of the stream."""
        passed = self.release()
        rest, self._rest = self._rest, b""
        return passed + self._pass(rest)

    def _take_mark(self, kind: bytes, step: int) -> None:
        if not self._heard.reports:  # what comes behind the first report is of ranks that are being ended
            self._heard.step = step
        self._is_reporting = kind == b"failed" or (self._is_reporting and kind == b"step")
        if kind == b"failed":
            self._heard.begin_report()

    def _lines(self, text: bytes) -> bytes:
        *whole, last = text.split(b"\n")  # a carriage return ends no line
        return b"".join(self._line(line) for line in [*(line + b"\n" for line in whole), *([last] if last else [])])

    def _line(self, line: bytes) -> bytes:
        """Take one line, or what stood before a mark; return what goes on now."""
        bare = line.rstrip(b"\n")
        if self._block:
            return self._go_on_in_block(line, EDGE.fullmatch(bare) is not None)
        edge = EDGE.search(bare)
        if edge and edge.end() == len(bare) and bare != line:
            # Text without a newline, of a rank, may stand before the block.
            self._block = [line[edge.start() :]]
            return self._pass(line[: edge.start()])
        if KNOWN_LINE.match(bare):
            self._heard.take_words(line)
            return b""
        return self._pass(line)

    def _go_on_in_block(self, line: bytes, is_edge: bool) -> bytes:
        self._block.append(line)
        block = b"".join(self._block)
        is_known = KNOWN_BLOCK.match(_first_words(block))
        if is_known and not is_edge and len(self._block) < _MAX_BLOCK_LINES:
            return b""
        self._block = []
        if is_known:
            self._heard.take_words(block)
            return b""
        return self._pass(block)

    def _pass(self, text: bytes) -> bytes:
        if not self._is_reporting or self._heard.is_told:
            return text
        self._heard.reports[-1] += text
        return b""


def _first_words(block: bytes) -> bytes:
    return block.partition(b"\n")[2]


class Relay:
    """A thread that reads one stream of mpirun to its end and writes what goes on."""

    def __init__(self, source: int, target: int, heard: Heard, *, is_stderr: bool) -> None:
        """Read from the descriptor ``source`` and write to ``target``."""
        self._source, self._target, self._heard, self._is_stderr = source, target, heard, is_stderr
        self._sieve = Sieve(heard)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hvdtrain-relay", daemon=True)
        self.ends_in_line = False

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """Wait for the end of the stream; a process that outlives mpirun may hold it open, and is not waited for."""
        self._thread.join(timeout_s)
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            is_over = self._is_over.is_set()
            wait_s = 0.0 if is_over else _PARTIAL_S if self._sieve.is_holding else 1.0
            if select.select([self._source], [], [], wait_s)[0]:
                data = os.read(self._source, _READ_BYTES)
                if not data:
                    break
                self._write(self._sieve.feed(data))
            elif is_over:
                break
            else:
                self._write(self._sieve.release())
            if self._is_stderr and self._heard.is_overdue():
                self._write(self._heard.take_report())
        self._write(self._sieve.finish())

    def _write(self, text: bytes) -> None:
        if not text:
            return
        if self._is_stderr:
            self._heard.tail = (self._heard.tail + text)[-_TAIL_BYTES:]
        self.ends_in_line = not text.endswith(b"\n")
        self._heard.screen.write(self._target, text)
