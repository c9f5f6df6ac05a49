"""Run mpirun as a child: its session, its signals, its two streams, and its end.

The child dies with the launcher, whatever ends that one, and leaves no process behind when it fails.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from hvdtrain.launch import guard
from hvdtrain.launch.guard import end_session
from hvdtrain.launch.output import Heard, Relay
from hvdtrain.launch.words import Ending

# SIGHUP too: mpirun has its own session, so a closed terminal does not reach it.
_RELAYED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_PR_SET_PDEATHSIG = 1

#: How long the streams may stay open behind mpirun; a process that it has left behind can hold them.
_STREAMS_S = 5.0


@dataclass(frozen=True)
class Outcome:
    """How one run of mpirun ended.

    Attributes:
        code: Its exit code, or 128 + signal when a signal ended the job.
        was_stopped: Whether the launcher got a signal meanwhile.
        was_killed: Whether a signal ended mpirun itself.
        ends_in_line: Whether the last line of standard error lacks its newline.
        heard: What the streams told.
    """

    code: int
    was_stopped: bool
    was_killed: bool
    ends_in_line: bool
    heard: Heard


def run_child(
    command: Sequence[str], environ: Mapping[str, str], log: Callable[[bytes], None], *, is_quiet: bool = False
) -> Outcome:
    """Run a command in its own session, signals passed on to it and output through; main thread only.

    Args:
        command: Program and arguments.
        environ: Its environment.
        log: Takes what mpirun itself says.
        is_quiet: Say nothing of a signal.
    """
    heard = Heard(log)
    with _SignalRelay(heard, is_quiet=is_quiet) as signals, _Guard() as guard:
        process = _start(command, environ)
        guard.watch(process.pid)
        assert process.stdout is not None
        assert process.stderr is not None
        out = Relay(process.stdout.fileno(), 1, heard, is_stderr=False)
        err = Relay(process.stderr.fileno(), 2, heard, is_stderr=True)
        signals.attach(process)
        for relay in (out, err):
            relay.start()
        code = process.wait()
        if code:
            end_session(process.pid)  # ranks, when mpirun was killed itself, and their workers
        for relay in (out, err):
            relay.finish(_STREAMS_S)
        process.stdout.close()
        process.stderr.close()
        heard.screen.show(b"")
    was_killed, stop = code < 0, signals.first
    code = _meant(code, heard.find_ending())
    # Open MPI 4 ends with 1 when a signal ended it, and by our own SIGUSR1 where it did not listen yet.
    code = 128 + stop if stop and code else 128 - code if was_killed else code
    return Outcome(code, stop != 0, was_killed, err.ends_in_line, heard)


def _meant(code: int, ending: Ending | None) -> int:
    """Return the job's exit code where MPICH's mpirun gives another: the bare number of a signal.

    It also gives 9 where a rank aborted, because it then kills the others.
    """
    if ending is None or code != (ending.signal or signal.SIGKILL):
        return code
    if ending.code is not None:
        return ending.code
    return code if ending.signal is None else 128 + code


class _Guard:
    """The process of :mod:`hvdtrain.launch.guard`, which ends what is left of the child when this process is killed."""

    def __enter__(self) -> _Guard:
        self._process = subprocess.Popen(  # noqa: S603  # our own program
            [sys.executable, "-I", "-S", guard.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # whoever reads ours may not wait for it
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def watch(self, session: int) -> None:
        """Tell it what to end."""
        self._write(f"{session}\n")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._write("done\n")
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _write(self, text: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # somebody has ended it
            self._process.stdin.write(text.encode())
            self._process.stdin.flush()


class _SignalRelay:
    """While active, signals to the launcher go to the child, also those that come before there is one."""

    def __init__(self, heard: Heard, *, is_quiet: bool) -> None:
        self._heard, self._is_quiet = heard, is_quiet
        self._received: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    @property
    def first(self) -> int:
        """Number of the first signal, 0 for none."""
        return self._received[0] if self._received else 0

    def __enter__(self) -> _SignalRelay:
        # What the shell told this process to ignore, as nohup does, stays ignored.
        for number in (n for n in _RELAYED_SIGNALS if signal.getsignal(n) is not signal.SIG_IGN):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def attach(self, process: subprocess.Popen[bytes]) -> None:
        """Begin to pass signals on."""
        self._process = process
        for count, early in enumerate(list(self._received), 1):
            process.send_signal(_passed_on(early, count))

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._received.append(number)
        self._heard.stopped_by = self.first
        if self._process is not None:
            self._process.send_signal(_passed_on(number, len(self._received)))
        if len(self._received) == 1 and not self._is_quiet:
            name = signal.Signals(number).name
            line = f"launch: {name}: training ranks finish their step and save, others end; a second ends all\n"
            self._heard.screen.write(2, line.encode())


def _passed_on(number: int, count: int) -> int:
    """Return what mpirun gets for the launcher's ``count``-th signal.

    mpirun ends its ranks about a second after SIGTERM; SIGUSR1 it only passes on, and a rank that trains then
    finishes its step and saves. A second signal goes through as it is.
    """
    return signal.SIGUSR1 if count == 1 else number


def _start(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command that gets SIGTERM when this thread, and so this process, is gone for whatever reason."""
    libc, launcher = ctypes.CDLL(None), os.getpid()

    def die_with_launcher() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != launcher:  # it went before the line above
            os._exit(1)

    return subprocess.Popen(  # noqa: S603  # typed by the user
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # No thread of this process runs yet that could hold a lock.
        preexec_fn=die_with_launcher if sys.platform == "linux" else None,
    )
