"""What mpirun says when a job ends: which text is its own and no rank's, and what can be learnt from it.

Only what is known to tell of an ending is taken; everything else that mpirun says, such as a host that it cannot
reach, is news to the user and stays in the stream.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MPIRUN = rb"\S*(?:mpirun|mpiexec|orterun|prterun)\S*"

#: A line that opens and closes a block of Open MPI, and of MPICH or Intel MPI.
EDGE = re.compile(rb"-{70,}|={70,}")

#: How the first line of a block begins that tells of an ending.
KNOWN_BLOCK = re.compile(
    rb"Primary job  terminated normally, but|MPI_ABORT was invoked on rank \d+|"
    + _MPIRUN
    + rb" (?:noticed that|detected that one or more processes exited|has exited due to)|"
    rb"(?:ORTE|PRTE) has lost communication with a remote daemon|=   BAD TERMINATION OF ONE OF YOUR"
)

#: Lines outside blocks: of mpirun itself, and of ranks that lose their peers while the job ends.
KNOWN_LINE = re.compile(
    rb"\[[\w.-]+:\d+\] (?:\d+ more process(?:es)? ha(?:s|ve) sent help message|Set MCA parameter \"\w+_help_aggregate\""
    rb"|\[\[\d+,0\],\d+\] ORTE_ERROR_LOG: .* in file \S*show_help\.c|PMIX ERROR: (?:UNREACHABLE|LOST))"
    rb"|" + _MPIRUN + rb": (?:Forwarding signal \d+ to job|killing job|abort is already in progress)"
    rb"|\[[\w.-]+\]\[\[\d+,\d+\],\d+\]\[btl_tcp\w*\.c:.*(?:Connection reset by peer|Broken pipe|peer closed)"
    rb"|Abort\(\d+\) on node \d+ \(rank \d+ in comm \d+\): application called MPI_Abort"
    rb"|YOUR APPLICATION TERMINATED WITH THE EXIT STRING: |This typically refers to a problem with your application\."
    rb"|Please see the FAQ page for debugging suggestions"
)

#: Whether any of the above may stand in a piece of a stream: one look where there is nothing to do.
HINT = re.compile(
    rb"-{70}|={70}|\x1e|show_help|help message|_help_aggregate|PMIX ERROR|btl_tcp|MPI_Abort|"
    rb"(?:mpirun|mpiexec|orterun|prterun)\S*: |YOUR APPLICATION|This typically|Please see the FAQ"
)


@dataclass(frozen=True)
class Ending:
    """How the process that ended a job ended, as mpirun tells it.

    Attributes:
        rank: Rank of that process; ``None`` where mpirun does not say, or a whole host was lost.
        host: Its host; ``None`` where mpirun does not say.
        how: The rest of a sentence, such as ``was ended by signal 9 (Killed)``.
        is_own_doing: Whether the process left by itself, and so may have said why.
        signal: Number of the signal that ended it; ``None`` for every other end.
        code: Exit code that it gave to MPI_Abort; ``None`` for every other end.
    """

    rank: int | None
    host: str | None
    how: str
    is_own_doing: bool = True
    signal: int | None = None
    code: int | None = None


_SIGNAL = re.compile(r"process rank (\d+) with PID \d+ on node (\S+) exited on\s+signal (\d+)(?: \(([^)]*)\))?")
_CODE = re.compile(r"Process name: \[.*,(\d+)\]\s+Exit code:\s+(\d+)")
_ABORT = re.compile(r"MPI_ABORT was invoked on rank (\d+) in .*\s+(?:with errorcode|Proc: .*\s+Errorcode:) (\d+)")
_LOST = re.compile(r"Remote daemon: \S+ on node (\S+)")
_HYDRA_SIGNAL = re.compile(r"PID \d+ RUNNING AT (\S+)\n(?:.*\n)*?.*EXIT STRING: (.*) \(signal (\d+)\)")
_HYDRA_CODE = re.compile(r"PID \d+ RUNNING AT (\S+)\s+=   EXIT CODE: (\d+)")
_HYDRA_ABORT = re.compile(r"Abort\((\d+)\) on node \d+ \(rank (\d+) in comm \d+\): application called MPI_Abort")
_INTEL = re.compile(r"RANK (\d+) PID \d+ RUNNING AT (\S+)\s+=   KILLED BY SIGNAL: (\d+) \((.*)\)")


def find_ending(text: str) -> Ending | None:
    """Return the cause of a job's end from all that mpirun said of it; ``None`` when it names no process.

    A process that was killed is the cause also where mpirun first tells of one that failed because it lost that one.
    """
    if found := _SIGNAL.search(text):
        return _killed(int(found[1]), found[2], int(found[3]), found[4])
    if found := _INTEL.search(text):
        return _killed(int(found[1]), found[2], int(found[3]), found[4])
    if found := _HYDRA_ABORT.search(text):  # Hydra then kills the others, and tells of that too
        return _aborted(int(found[2]), found[1])
    if found := _HYDRA_SIGNAL.search(text):
        return _killed(None, found[1], int(found[3]), found[2])
    if found := _LOST.search(text):
        return Ending(None, found[1], "no longer answers", is_own_doing=False)
    left = [(found.start(), _left(int(found[1]), found[2])) for found in _CODE.finditer(text)]
    left += [(found.start(), _aborted(int(found[1]), found[2])) for found in _ABORT.finditer(text)]
    left += [(found.start(), _left(None, found[2], found[1])) for found in _HYDRA_CODE.finditer(text)]
    return min(left, key=lambda place_and_ending: place_and_ending[0])[1] if left else None


def _killed(rank: int | None, host: str, signal: int, name: str | None) -> Ending:
    how = f"was ended by signal {signal}" + (f" ({name})" if name else "")
    return Ending(rank, host, how, is_own_doing=False, signal=signal)


def _left(rank: int | None, code: str, host: str | None = None) -> Ending:
    return Ending(rank, host, f"left with exit code {code}")


def _aborted(rank: int, code: str) -> Ending:
    return Ending(rank, None, f"called MPI_Abort with exit code {code}", code=int(code))
