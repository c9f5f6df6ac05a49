"""What every contender shares: options, model and loss of the job, its own share of the batches, and the stopwatch."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hvdtrain.data import stack
from hvdtrain.job import Job, load_job
from hvdtrain.job_options import GivenOptions
from hvdtrain.memory import peak_bytes

PROJECT = Path(__file__).parents[3]
JOBS = {"gpt": PROJECT / "examples/shakespeare.py", "mlp": PROJECT / "tests/bench/jobs/mlp.py"}
#: Begins the line that holds a contender's times.
MARK = "bench: "
#: Begins the line in which a rank tells the most bytes that it has held.
MEMORY_MARK = "memory: "


@dataclass(frozen=True)
class Problem:
    """One benchmark, the same for all contenders."""

    job: Job
    batch_size: int
    accumulation: int
    warm_up: int
    num_steps: int

    @property
    def clip_norm(self) -> float | None:
        """The job's limit of the gradient."""
        return self.job.config.clip_norm

    def steps(self, rank: int, size: int) -> Iterator[list[Any]]:
        """Yield the micro-batches of this rank's share of each step, as NumPy arrays made beforehand."""
        data = self.job.required("train_data")()
        rows = np.random.default_rng(rank).permutation(len(data))
        count, made = self.batch_size, []
        for start in range(0, 8 * count * self.accumulation, count):
            made.append(stack([data[int(index)] for index in np.take(rows, range(start, start + count), mode="wrap")]))
        for step in range(self.warm_up + self.num_steps):
            first = step * self.accumulation
            yield [made[(first + index) % len(made)] for index in range(self.accumulation)]


class Stopwatch:
    """Time from the end of one step to the end of the next."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._times = problem, [time.perf_counter()]

    def step_done(self) -> None:
        self._times.append(time.perf_counter())

    def tell(self, rank: int) -> None:
        """Print this rank and its memory, and the steps behind the warm-up once."""
        sys.stdout.write(f"\n{MEMORY_MARK}{rank} {peak_bytes()}\n")
        if rank == 0:
            steps = [1e3 * ms for ms in np.diff(self._times).tolist()][self._problem.warm_up :]
            sys.stdout.write(f"\n{MARK}{json.dumps(steps)}\n")
        sys.stdout.flush()


def parse_arguments() -> Problem:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", choices=JOBS, required=True)
    parser.add_argument("--size", required=True)
    for name in ("--batch-size", "--accumulation", "--warm-up", "--steps"):
        parser.add_argument(name, type=int, required=True)
    options, _ = parser.parse_known_args()  # DeepSpeed's launcher adds one of its own
    job = load_job(JOBS[options.job], GivenOptions({"size": options.size}))
    return Problem(job, options.batch_size, options.accumulation, options.warm_up, options.steps)
