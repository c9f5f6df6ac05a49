"""Ends a job in which nothing moves, with a report of where every rank stands and whom the others wait for.

A thread per rank tells the watchers, rank 0 and rank 1, where its main thread stands. Nothing here waits for another
rank, so it works while main threads are stuck in Python, in a collective operation, or frozen. Rank 0 judges; rank 1
does when rank 0 is silent.
"""

from __future__ import annotations

import itertools
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

from hvdtrain.communicator import Communicator
from hvdtrain.errors import StallError
from hvdtrain.failure import report_and_abort
from hvdtrain.position import Phase, Position, find_line
from hvdtrain.stall import Standing, judge, report

_log = logging.getLogger(__name__)

#: Ranks that watch: all of them report to both.
_WATCHERS = (0, 1)

#: Seconds between two heartbeats, and how long a rank may be silent before it is taken for dead; both shorter where
#: ``stall_timeout_s`` is.
_INTERVAL_S = 1.0
_SILENCE_S = 5.0

#: Runs of one process, counted the same on every rank, so that a late heartbeat of the last run is known as such.
_runs = itertools.count()


class Heartbeat(NamedTuple):
    """What one rank tells of itself."""

    run: int
    rank: int
    host: str
    phase: Phase
    step: int
    moves: int
    line: str
    is_waiting: bool
    has_left: bool


@dataclass
class _Heard:
    """The last heartbeat of a rank, and when it came and last told of a move, on this rank's clock."""

    beat: Heartbeat
    heard_at: float
    moved_at: float

    def take(self, beat: Heartbeat, now: float) -> None:
        if beat.moves != self.beat.moves:
            self.moved_at = now
        self.beat, self.heard_at = beat, now

    def standing(self, now: float) -> Standing:
        beat, still_s, silent_s = self.beat, now - self.moved_at, now - self.heard_at
        return Standing(
            *(beat.rank, beat.host, beat.step, beat.phase, beat.line, beat.is_waiting or beat.phase == "reduce"),
            *(still_s, silent_s, beat.has_left),
        )


class Watchdog:
    """While active, ends the job when no rank has moved for ``stall_timeout_s``; every rank must make one."""

    def __init__(
        self,
        communicator: Communicator,
        position: Position,
        stall_timeout_s: float,
        also_moved: Callable[[], int] = lambda: 0,
    ) -> None:
        """Watch the main thread's ``position``.

        Args:
            communicator: Gives mailbox and topology, and ends the job.
            position: What the main thread moves.
            stall_timeout_s: Longest time in seconds without a move on any rank, above 0.
            also_moved: Counts what moves beside the main thread, such as bytes of a checkpoint on the disk.
        """
        self._communicator, self._position, self._also_moved = communicator, position, also_moved
        self._timeout_s = stall_timeout_s
        # The watchers hear of every rank: at thousands of them, less often.
        self._interval_s = min(_INTERVAL_S * max(1.0, communicator.topology.size / 1000), stall_timeout_s / 4)
        self._silence_s = max(min(_SILENCE_S, stall_timeout_s / 2), 3 * self._interval_s)
        self._run = next(_runs)
        self._heard: dict[int, _Heard] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hvdtrain-watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        """Begin to watch."""
        if self._communicator.mailbox.is_usable:
            self._thread.start()
        elif self._communicator.topology.is_root:
            _log.warning("watchdog: this MPI has no MPI_THREAD_MULTIPLE, so stalls are not noticed.")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell the watchers that this rank's run is over, and stop."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        topology, last = self._communicator.topology, time.monotonic()
        watchers = [rank for rank in _WATCHERS if rank < topology.size]
        is_over = False
        while not is_over:
            is_over, now = self._is_over.is_set(), time.monotonic()
            beat = self._beat(has_left=is_over)
            for rank in watchers:
                if rank != topology.rank:
                    self._communicator.mailbox.post(rank, beat)
            if topology.rank in watchers and not is_over:
                self._listen(beat, now)
                self._forgive(now - last - self._interval_s)
                self._end_if_stalled(now)
            last = now
            self._is_over.wait(self._interval_s)

    def _beat(self, *, has_left: bool) -> Heartbeat:
        position, line = self._position, find_line(self._position.phase)
        topology = self._communicator.topology
        # Every module that is imported is a move, which a slow disk may need minutes for.
        moves = position.moves + len(sys.modules) + self._also_moved()
        return Heartbeat(
            *(self._run, topology.rank, socket.gethostname(), position.phase, position.step, moves),
            *(line.text, line.is_waiting, has_left),
        )

    def _listen(self, own: Heartbeat, now: float) -> None:
        if not self._heard:  # a rank that is never heard of stands where this one does
            unknown = own._replace(host="an unknown host", phase="start", line="never heard of", is_waiting=False)
            for rank in range(self._communicator.topology.size):
                self._heard[rank] = _Heard(unknown._replace(rank=rank), now, now)
        for beat in [own, *self._communicator.mailbox.collect()]:
            if beat.run == self._run:
                self._heard[beat.rank].take(beat, now)

    def _forgive(self, missed_s: float) -> None:
        """Take the time in which this very process was stopped, as by a suspended job, as not passed."""
        if missed_s > self._silence_s / 2:
            for heard in self._heard.values():
                heard.heard_at += missed_s
                heard.moved_at += missed_s

    def _end_if_stalled(self, now: float) -> None:
        standings = [self._heard[rank].standing(now) for rank in sorted(self._heard)]
        is_root = self._communicator.topology.is_root
        if min(s.still_s for s in standings) < self._timeout_s:
            return
        own = self._communicator.topology.rank
        if len(standings) > 1 and all(s.has_left for s in standings if s.rank != own):
            return  # the run is over, and nobody waits for what this rank still does
        if not is_root and standings[0].silent_s < self._silence_s:
            return  # the root lives and will judge
        verdict = judge(standings, self._silence_s)
        report_and_abort(StallError(report(standings, verdict, self._timeout_s)), self._communicator)
