"""How a job ends when something goes wrong: one report, from one rank, and every rank gone.

An error that all ranks raise together (``is_agreed``) is printed once by the root, and ranks leave together. Any
other one ends the whole job at once, because the other ranks wait for this one in a collective.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NoReturn

from hvdtrain import user_frames
from hvdtrain.communicator import Communicator, connect, launched_as
from hvdtrain.errors import ElsewhereError, HvdTrainError
from hvdtrain.launch.telling import framed
from hvdtrain.quiet import write_error

#: What Ctrl-C leaves behind where nothing has to be saved: while a job starts, or when it comes a second time.
INTERRUPTED = "hvdtrain: stopped by SIGINT"

#: How long a rank that is not the one to report waits for the launcher to end it.
_WAIT_S = 10.0

#: How long the rank that reports keeps its claim, for ranks that fail at the same moment a little later.
_CLAIM_S = 0.3


@contextmanager
def ends_all_ranks(communicator: Communicator) -> Iterator[None]:
    """End the whole job when the body raises on this rank alone; pass errors on that all ranks raise.

    With one rank, every error is passed on: there is nobody to end.
    """
    try:
        yield
    except BaseException as error:
        if communicator.topology.size == 1 or (isinstance(error, HvdTrainError) and error.is_agreed):
            raise
        report_and_abort(error, communicator)


def report_and_abort(error: BaseException, communicator: Communicator) -> NoReturn:
    """Print this rank's error as the last thing that ranks print, and end all ranks."""
    code = exit_code_of(error)
    # Lower hosts first, so that of several hosts that fail at once one gets to report.
    time.sleep(min(0.2 * communicator.topology.cross_rank, 2.0))
    if not isinstance(error, ElsewhereError) and _is_first_to_report(communicator.job_id):
        write_error(framed(_report(error, str(communicator.topology))))
        time.sleep(_CLAIM_S)
    else:
        time.sleep(_WAIT_S)
    communicator.abort(code)


def leave(error: HvdTrainError) -> NoReturn:
    """Print an error that all ranks share, once, and leave with its exit code.

    A launcher ends the other ranks as soon as one has left, so the root prints first and the others wait to be
    ended. The root leaves without finalising MPI, which would wait for them.
    """
    rank, size, _ = launched_as()
    if rank == 0:
        write_error(framed(f"hvdtrain: error: {error}\n"))
    if size == 1:
        sys.exit(error.exit_code)
    if rank != 0:
        time.sleep(_WAIT_S)
    if connect.cache_info().currsize and not connect().keeps_exit_codes:
        connect().abort(error.exit_code)
    os._exit(error.exit_code)


def install_excepthook() -> None:
    """Let an error that a user's own script does not catch end all ranks, instead of leaving them waiting.

    The hook stays after ``fit``: with several ranks, a rank that fails later would leave the others in a barrier.
    """
    if getattr(sys.excepthook, "is_hvdtrain", False):
        return
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, HvdTrainError) and (error.is_agreed or launched_as()[1] == 1):
            leave(error)
        if launched_as()[1] == 1:
            previous(kind, error, trace)
        else:
            report_and_abort(error.with_traceback(trace), connect())

    hook.is_hvdtrain = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def exit_code_of(error: BaseException) -> int:
    """Return the exit code that an error ends the job with; never 0."""
    if isinstance(error, SystemExit):
        return (error.code % 256 or 1) if isinstance(error.code, int) else 1  # the system keeps the low byte
    if isinstance(error, KeyboardInterrupt):
        return 130
    return error.exit_code if isinstance(error, HvdTrainError) else 1


def _report(error: BaseException, tag: str) -> str:
    if isinstance(error, HvdTrainError):
        return f"hvdtrain: error: {error} {tag}\n"
    if isinstance(error, KeyboardInterrupt):
        return f"{INTERRUPTED} {tag}\n"
    trace = user_frames.told(error).rstrip()
    return f"hvdtrain: this rank failed and ends the job {tag}\n{trace} {tag}\n"


def _is_first_to_report(job_id: str) -> bool:
    """Claim the report of this job on this host; an abstract socket's name is free again when its owner is gone."""
    global _claim
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0hvdtrain-{job_id}")
    except OSError:
        claim.close()
        return False
    _claim = claim
    return True


_claim: socket.socket | None = None
