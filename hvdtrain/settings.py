"""Environment variables that make a run fast and repeatable, each set unless the user has set it; explained here alone.

Each part reads its variables once: a process before its first allocation, MPI and Horovod when they start, PyTorch at
its first large tensor. The figures are of two ranks on two cores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

#: Read when MPI starts. Open MPI spins while it waits and takes the cores from the arithmetic: 304 ms a step, not 160.
FOR_MPI = {"OMPI_MCA_mpi_yield_when_idle": "1"}

#: Read when Horovod starts. Otherwise timing decides what is summed together, and with it the last bits.
FOR_HOROVOD = {"HOROVOD_DISABLE_GROUP_FUSION": "1"}

#: Read when Horovod starts to reduce on CPUs. Gradients from half a MiB on are summed where they lie; Horovod copies
#: what it sums together, 64 MiB at most, into a buffer and back: 18 ms a reduction of 19 million values, not 50.
FOR_HOROVOD_ON_CPU = {"HOROVOD_FUSION_THRESHOLD": str(512 * 1024)}

#: Read at the first large tensor. Pages of 2 MiB in the place of 4 KiB ones: 148 ms a step, not 166.
FOR_TORCH = {"THP_MEM_ALLOC_ENABLE": "1"}

#: Read when a process begins, so that the launcher alone can set it: the same pages for what TensorFlow allocates.
FOR_PROCESS = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def settle(settings: Mapping[str, str]) -> None:
    """Set each variable of this process that is not set yet."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)
