"""What both adapters settle when they start: threads per rank, and one idea of who is who."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hvdtrain.errors import AdapterError
from hvdtrain.topology import Topology


def threads_per_rank(topology: Topology, environ: Mapping[str, str]) -> int | None:
    """Return the cores of this host divided by its ranks, at least 1; ``None`` when ``OMP_NUM_THREADS`` decides.

    More threads than cores make every rank slower than one thread would.
    """
    if environ.get("OMP_NUM_THREADS"):
        return None
    return max(1, len(os.sched_getaffinity(0)) // topology.local_size)


def require_same_size(rank: int, size: int, topology: Topology) -> None:
    """Refuse a process in which Horovod and MPI disagree about rank or size, as under a Gloo launch.

    Raises:
        AdapterError: They disagree; each process would train alone, or reduce with strangers.
    """
    if (rank, size) != (topology.rank, topology.size):
        raise AdapterError(
            f"start: Horovod and MPI must see the same ranks, got rank {rank} of {size} from Horovod and rank "
            f"{topology.rank} of {topology.size} from MPI. Build Horovod with the MPI that launches: "
            "bash docker/install.sh."
        )
