"""The ranks that measure an allreduce: ``mpirun ... python -m hvdtrain.doctor.allreduce``; the root prints JSON."""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from hvdtrain.communicator import Communicator, connect

#: Begins the line of the result.
MARK = "allreduce: "

#: Bytes, and how often each is reduced: few enough for 10 Mbit/s, and for 20 ms of latency.
SIZES = ((8, 50), (64 * 1024, 20), (8 * 1024 * 1024, 3))


def measure(communicator: Communicator, num_bytes: int, repeats: int) -> tuple[float, bool]:
    """Return the mean seconds of an allreduce of float32 values, and whether the sums are right; all ranks must call.

    The time is the slowest rank's.
    """
    values = np.ones(num_bytes // 4, dtype=np.float32)
    total = communicator.allreduce_sum(values)  # opens the connections
    communicator.barrier()
    began = time.perf_counter()
    for _ in range(repeats):
        total = communicator.allreduce_sum(values)
    seconds = (time.perf_counter() - began) / repeats
    is_wrong = float((total != communicator.topology.size).any())
    slowest, any_wrong = communicator.maximum(np.array([seconds, is_wrong]))
    return float(slowest), not any_wrong


def main() -> None:
    """Measure every size; the root tells the result."""
    communicator = connect()
    measured = [(num_bytes, *measure(communicator, num_bytes, repeats)) for num_bytes, repeats in SIZES]
    topology = communicator.topology
    if topology.is_root:
        told = {"size": topology.size, "hosts": topology.cross_size, "times": measured}
        sys.stdout.write(f"{MARK}{json.dumps(told)}\n")


if __name__ == "__main__":
    main()
