"""How much memory this process has held."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path

#: Linux's own account of this process, with one ``name: value`` a line (man 5 proc_pid_status).
_STATUS = Path("/proc/self/status")


def peak_bytes() -> int:
    """Return the most bytes that this process has held at once: its resident set, shared libraries included."""
    with suppress(OSError, ValueError, IndexError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    # On Linux this would count what the process was before ``exec``, such as a large parent's copy.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
