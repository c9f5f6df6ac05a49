"""Times Horovod's sum over ranks for a few sizes; each adapter says how it reduces."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping

from hvdtrain.communicator import Communicator
from hvdtrain.errors import AdapterError
from hvdtrain.timed_run import run

#: Begins the line of the result.
MARK = "reducing: "

#: Bytes of float32 values, and how often each is reduced.
SIZES = ((1024, 60), (256 * 1024, 40), (4 * 1024 * 1024, 20), (32 * 1024 * 1024, 5))


def tell_reducing(communicator: Communicator, make_reduce: Callable[[int], Callable[[], object]]) -> None:
    """Time every size on all ranks; the root prints bytes and median seconds.

    Args:
        communicator: Of this launch.
        make_reduce: Takes a number of float32 values, and returns what sums so many over ranks, once per call.
    """
    times = []
    for num_bytes, repeats in SIZES:
        reduce = make_reduce(num_bytes // 4)
        reduce()  # opens connections and takes memory
        times.append((num_bytes, statistics.median(_seconds(reduce) for _ in range(repeats))))
    if communicator.topology.is_root:
        sys.stdout.write(f"{MARK}{json.dumps(times)}\n")


def _seconds(reduce: Callable[[], object]) -> float:
    began = time.perf_counter()
    reduce()
    return time.perf_counter() - began


def measure_reducing(framework: str, num_ranks: int, environ: Mapping[str, str]) -> list[tuple[int, float]]:
    """Return bytes and seconds of Horovod's sum over ranks of this machine, smallest first.

    Raises:
        ConfigError: The launch fails.
        AdapterError: It tells nothing.
    """
    program = f"hvdtrain.{framework}_adapter.reducing"
    told = run("plan", num_ranks, ["python", "-m", program], environ)
    line = next((line for line in told.splitlines() if line.startswith(MARK)), None)
    if line is None:
        raise AdapterError(f"plan: {program} must tell what it measured, got nothing. Run 'hvdtrain doctor'.")
    return [(int(num_bytes), float(seconds)) for num_bytes, seconds in json.loads(line.removeprefix(MARK))]
