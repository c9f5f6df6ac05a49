"""A small process that outlives a launcher that is killed, and ends what its mpirun then leaves behind.

The kernel sends SIGTERM to mpirun when its launcher dies, but an mpirun that is still starting its ranks ends without
ending them. This file runs alone, ``python -I -S guard.py``, so that it is there in milliseconds: it needs the
standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

#: How long mpirun may take to end its ranks after SIGTERM; Open MPI leaves them about one second.
_GRACE_S = 4.0

#: How long to go on killing: a process that waits for a dead disk does not end.
_KILL_S = 10.0


def find_members(session: int) -> list[int]:
    """Return the processes of a session, those that have ended and are not yet collected left out; Linux only."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        with suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{int(name)}/stat", "rb") as stream:
                # The name of the program stands in brackets and may hold anything.
                state, _, _, own_session, *_ = stream.read().rpartition(b")")[2].split()
            if int(own_session) == session and state not in (b"Z", b"X"):
                found.append(int(name))
    return found


def end_session(session: int) -> None:
    """Kill every process of a session, also one that is being started; one that cannot be ended is left behind."""
    limit = time.monotonic() + _KILL_S
    while (members := find_members(session)) and time.monotonic() < limit:
        for pid in members:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def main() -> None:
    """Read the session of mpirun, then ``done``; the end of input before that is the death of the launcher."""
    session = sys.stdin.readline().strip()
    if not session or sys.stdin.readline().strip() == "done":
        return
    limit = time.monotonic() + _GRACE_S
    while int(session) in find_members(int(session)) and time.monotonic() < limit:  # mpirun itself
        time.sleep(0.05)
    end_session(int(session))


if __name__ == "__main__":
    main()
