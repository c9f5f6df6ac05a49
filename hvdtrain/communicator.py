"""The control plane: small Python values and sums between ranks, over mpi4py, the same for both frameworks.

This is the only module that names mpi4py. It starts MPI, works on a duplicate of ``COMM_WORLD`` so that its
messages never meet Horovod's, and refuses launches in which MPI does not see the ranks that the launcher started.
"""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import threading
import uuid
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from hvdtrain.errors import AdapterError, ElsewhereError, HvdTrainError, RankError
from hvdtrain.settings import FOR_MPI, settle
from hvdtrain.topology import Topology

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

#: How launchers tell a process the size and its rank, in the order in which they are believed. Slurm stands
#: last because an ``mpirun`` inside a Slurm job inherits the variables of the step that carries it.
_LAUNCHER_VARIABLES = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "Open MPI's mpirun"),
    ("PMI_SIZE", "PMI_RANK", "MPICH's or Intel's mpirun"),
    ("HOROVOD_SIZE", "HOROVOD_RANK", "horovodrun with Gloo"),
    ("WORLD_SIZE", "RANK", "torchrun"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun"),
)


def launched_as(environ: Mapping[str, str] = os.environ) -> tuple[int, int, str]:
    """Return ``(rank, size, launcher)`` as the environment tells them, without starting MPI.

    A process that no launcher started is ``(0, 1, "no launcher")``.
    """
    for size_name, rank_name, launcher in _LAUNCHER_VARIABLES:
        if environ.get(size_name, "").isdigit() and environ.get(rank_name, "").isdigit():
            return int(environ[rank_name]), int(environ[size_name]), launcher
    return 0, 1, "no launcher"


class Mailbox:
    """Point-to-point messages for a thread beside the main one: nothing waits for a rank that does not answer."""

    def __init__(self, mpi: ModuleType) -> None:
        """Duplicate ``COMM_WORLD``, so that no message meets those of the main thread; every rank must call."""
        self._comm: MPI.Intracomm = mpi.COMM_WORLD.Dup()
        self._unsent: dict[int, MPI.Request] = {}
        #: Whether this MPI lets a second thread call it at all.
        self.is_usable: bool = mpi.Query_thread() == mpi.THREAD_MULTIPLE

    def post(self, rank: int, message: object) -> None:
        """Send a small picklable message, unless the last one to that rank has not left yet."""
        before = self._unsent.get(rank)
        if before is None or before.Test():
            self._unsent[rank] = self._comm.isend(message, dest=rank)

    def collect(self) -> list[Any]:
        """Return the messages that have arrived."""
        found = []
        while (message := self._comm.improbe()) is not None:
            found.append(message.recv())
        return found


class Communicator:
    """Collective operations over all ranks; every method must be called by every rank, in the same order."""

    def __init__(self, mpi: ModuleType) -> None:
        """Duplicate ``COMM_WORLD`` of the started ``mpi4py.MPI``."""
        self._mpi = mpi
        self._comm: MPI.Intracomm = mpi.COMM_WORLD.Dup()
        self.topology = self._read_topology()
        #: Names this launch, the same on every rank.
        self.job_id: str = self.broadcast(uuid.uuid4().hex)
        #: Whether mpirun ends with the code of a rank that exits; MPICH's does only with that of one that aborts.
        self.keeps_exit_codes: bool = mpi.get_vendor()[0] == "Open MPI"
        #: Small messages between two ranks, for a thread of their own.
        self.mailbox = Mailbox(mpi)

    def broadcast(self, value: T) -> T:
        """Return the root's ``value`` on every rank."""
        return self._comm.bcast(value, root=0)  # type: ignore[no-any-return]

    def all_gather(self, value: T) -> list[T]:
        """Return every rank's small ``value``, by rank, on every rank."""
        return self._comm.allgather(value)

    def allreduce_sum(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the element-wise sum of ``values`` over ranks, same shape and dtype on every rank."""
        values = np.asarray(values, order="C")
        result = np.empty_like(values)
        self._comm.Allreduce(values, result)
        return result

    def maximum(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the element-wise maximum of ``values`` over ranks."""
        return self._reduce(np.asarray(values, order="C"), "MAX")

    def is_equal(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Return, on every rank, for each element whether all ranks gave the same one."""
        values = np.asarray(values, order="C")
        return np.asarray(self._reduce(values, "MIN") == self._reduce(values, "MAX"))

    def agree(self, where: str, values: Mapping[str, object], cure: str) -> None:
        """Refuse, on all ranks, when any of the named values differs between ranks.

        Ranks compare 32-byte digests first (MIN and MAX), so that nothing is gathered when all is well; then
        the lowest rank that differs from the root tells what it holds.

        Args:
            where: Begins the message.
            values: What must be equal, by name; compared by ``repr``.
            cure: Ends the message.

        Raises:
            RankError: A value differs; the message holds both values and the rank.
        """
        told = {name: repr(values[name]) for name in sorted(values)}
        digest = np.frombuffer(hashlib.sha256(repr(told).encode()).digest(), dtype=np.uint8)
        if self.is_equal(digest).all():
            return
        roots = self.broadcast(told)
        mine = self.topology.rank if told != roots else self.topology.size
        lowest = int(self._reduce(np.array([mine]), "MIN")[0])
        theirs = self._comm.bcast(told, root=lowest)
        parts = [
            f"{name} (rank 0 has {roots.get(name)}, rank {lowest} has {theirs.get(name)})"
            for name in sorted({*roots, *theirs})
            if roots.get(name) != theirs.get(name)
        ]
        raise _agreed(RankError(f"{where}: ranks must agree on {'; '.join(parts)}. {cure}"))

    def together(self, action: Callable[[], T]) -> T:
        """Run ``action`` on every rank; when it fails on any, raise the lowest rank's error on all of them.

        An error that is none of this package's is raised where it happened, with its traceback; the others raise
        ``ElsewhereError``. An error that only one rank can see (a file missing on one host) thereby ends all ranks
        at the same place with the same message instead of leaving the others in a collective.
        """
        result: T | None = None
        error: BaseException | None = None
        try:
            result = action()
        except Exception as caught:
            error = caught
        # Where calls nest, an ElsewhereError only speaks of an error that its own rank brings here as well.
        is_own = error is not None and not isinstance(error, ElsewhereError)
        lowest = int(self._reduce(np.array([self.topology.rank if is_own else self.topology.size]), "MIN")[0])
        if lowest == self.topology.size:
            return result  # type: ignore[return-value]
        shared = error if isinstance(error, HvdTrainError) else None
        shared = self._comm.bcast(shared, root=lowest)
        if lowest == self.topology.rank and error is not None:
            raise _agreed(error)
        if shared is None:
            raise ElsewhereError(f"together: rank {lowest} failed and reports its error.")
        raise _agreed(shared)

    def run_on_root(self, action: Callable[[], T]) -> T:
        """Run ``action`` on the root alone and return its result, or raise its error, on every rank."""
        result = self.together(lambda: action() if self.topology.is_root else None)
        return self.broadcast(result)  # type: ignore[return-value]

    def barrier(self) -> None:
        """Return on any rank only after every rank has called."""
        self._comm.Barrier()

    def abort(self, exit_code: int) -> NoReturn:
        """End every rank of the job at once; ``mpirun`` and ``horovodrun`` leave with ``exit_code``."""
        if self.topology.size > 1:  # alone, MPI would only add its own words
            self._comm.Abort(exit_code)
        os._exit(exit_code)  # some MPIs return from Abort before they kill

    def _reduce(self, values: NDArray[Any], how: Literal["MIN", "MAX"]) -> NDArray[Any]:
        result = np.empty_like(values)
        self._comm.Allreduce(values, result, op=getattr(self._mpi, how))
        return result

    def _read_topology(self) -> Topology:
        world = self._comm
        local = world.Split_type(self._mpi.COMM_TYPE_SHARED, key=world.rank)
        cross = world.Split(color=local.rank, key=world.rank)
        topology = Topology(
            rank=world.rank,
            size=world.size,
            local_rank=local.rank,
            local_size=local.size,
            cross_rank=cross.rank,
            cross_size=cross.size,
        )
        local.Free()
        cross.Free()
        return topology


@functools.cache
def connect() -> Communicator:
    """Start MPI once per process and return the control plane.

    Raises:
        AdapterError: No MPI library can be loaded, or MPI sees another size than the launcher started, as when
            the launcher belongs to another MPI; each process would then train alone.
    """
    settle(FOR_MPI)
    on_sigusr1 = signal.getsignal(signal.SIGUSR1)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise _agreed(
            AdapterError(
                f"connect: hvdtrain needs mpi4py and an MPI library, got {type(error).__name__}: {error}. "
                "Run docker/install.sh, or install Open MPI and 'pip install mpi4py'."
            )
        ) from error
    # MPICH takes SIGUSR1 for itself and swallows it, and with it the stop signal of 'hvdtrain launch'.
    if on_sigusr1 is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, on_sigusr1)
    _, size, launcher = launched_as()
    seen = MPI.COMM_WORLD.Get_size()
    if seen != size:
        raise _agreed(
            AdapterError(
                f"connect: MPI must see the ranks that the launcher started, got size {seen} "
                f"from MPI and size {size} from {launcher}. Launch with the mpirun of the MPI that "
                "Horovod and mpi4py were built with, by 'hvdtrain launch', 'mpirun' or 'horovodrun --mpi'."
            )
        )
    return Communicator(MPI)


def _agreed(error: BaseException) -> BaseException:
    if isinstance(error, HvdTrainError):
        error.is_agreed = True
    return error
