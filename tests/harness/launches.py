"""Start one command, hold it to a time limit, and see that no process of it is left.

The processes of a launch are known by a marker in their environment, because ranks live in process
groups of their own and so neither die nor are found with the group of the launcher.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import psutil

#: Holds the ids of the launches that a process belongs to, the outermost first, joined by colons.
LAUNCH_MARKER = "HVDTRAIN_TEST_LAUNCH"
TERMINATE_GRACE_S = 5.0
LEFTOVER_GRACE_S = 10.0
TAIL_CHARACTERS = 8000


@dataclass(frozen=True)
class Finished:
    """What a command that ended by itself has left."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def output(self) -> str:
        """Both streams, errors last."""
        return self.stdout + self.stderr


def find_processes(launch_id: str) -> list[psutil.Process]:
    """Return the living processes that carry this id in their marker."""
    found = []
    for process in psutil.process_iter():
        # A process may end, or belong to another user, between the listing and the look.
        with suppress(psutil.Error, OSError):
            if launch_id in process.environ().get(LAUNCH_MARKER, "").split(":"):
                found.append(process)
    return found


class Launch:
    """A started command; made by ``start_command``."""

    def __init__(
        self,
        command: Sequence[str],
        launch_id: str,
        streams: tuple[BinaryIO, BinaryIO],
        **popen: object,
    ) -> None:
        self.command = list(command)
        self.launch_id = launch_id
        self._streams = streams
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=streams[0],
            stderr=streams[1],
            start_new_session=True,
            **popen,
        )

    def processes(self) -> list[psutil.Process]:
        """Return every living process of this launch, the launcher included."""
        return find_processes(self.launch_id)

    def stdout(self) -> str:
        """Return what was written so far."""
        return _read(self._streams[0])

    def stderr(self) -> str:
        """Return what was written so far."""
        return _read(self._streams[1])

    def finish(self, *, timeout_s: float, leftover_grace_s: float = LEFTOVER_GRACE_S) -> Finished:
        """Wait for the end; fail when it takes over ``timeout_s`` or leaves a process behind."""
        name = " ".join(self.command)
        try:
            returncode = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"{name}: not done in {timeout_s:g} s\n{self._tail()}") from None
        seconds = time.monotonic() - self._began
        left = self._end_leftovers(leftover_grace_s)
        if left:
            raise AssertionError(
                f"{name}: ended with code {returncode} and left these processes behind: "
                f"{'; '.join(left)}\n{self._tail()}"
            )
        return Finished(returncode, self.stdout(), self.stderr(), seconds)

    def end(self) -> None:
        """Make sure that nothing of this launch runs any longer; never fails."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(TERMINATE_GRACE_S)
        self._end_leftovers(0.0)

    def _end_leftovers(self, grace_s: float) -> list[str]:
        """Kill what is still there after the grace time and return its description."""
        deadline = time.monotonic() + grace_s
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        described = []
        for process in left:
            with suppress(psutil.Error):
                described.append(f"{process.pid} ({' '.join(process.cmdline())})")
                process.kill()
        psutil.wait_procs(left, timeout=TERMINATE_GRACE_S)
        return described

    def _tail(self) -> str:
        return (self.stdout() + self.stderr())[-TAIL_CHARACTERS:]


@contextmanager
def start_command(
    command: Sequence[str],
    *,
    env: Mapping[str, str | None] | None = None,
    cwd: str | Path | None = None,
) -> Iterator[Launch]:
    """Start a command in a session of its own; what is left of it when the block ends is killed.

    Args:
        command: Program and arguments.
        env: Changes to this process's environment; None takes a variable away.
        cwd: Working directory; this process's by default.
    """
    launch_id = uuid4().hex
    changes = {**(env or {})}
    changes[LAUNCH_MARKER] = ":".join(filter(None, [os.environ.get(LAUNCH_MARKER), launch_id]))
    merged = {**os.environ, **changes}
    environment = {name: value for name, value in merged.items() if value is not None}
    # Files, not pipes: a leftover that holds a pipe open would keep the reader waiting for its end.
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        launch = Launch(command, launch_id, (stdout, stderr), env=environment, cwd=cwd)
        try:
            yield launch
        finally:
            launch.end()


def run_command(
    command: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str | None] | None = None,
    cwd: str | Path | None = None,
    leftover_grace_s: float = LEFTOVER_GRACE_S,
) -> Finished:
    """Run a command to its end; the exit code is the caller's to judge.

    Raises:
        AssertionError: It took longer than ``timeout_s``, or left a process behind. By then
            everything of it is killed.
    """
    with start_command(command, env=env, cwd=cwd) as launch:
        return launch.finish(timeout_s=timeout_s, leftover_grace_s=leftover_grace_s)


def _read(stream: BinaryIO) -> str:
    # The child shares the file offset, so reading must not move it.
    descriptor = stream.fileno()
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")
