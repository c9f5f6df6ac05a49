"""Time a job on several numbers of ranks, interleaved, and say where a step goes and what to change first.

Every measurement is a plain ``hvdtrain train``; what it leaves in its run folder is read.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdtrain.doctor.allreduce import MARK
from hvdtrain.errors import ConfigError
from hvdtrain.timed_run import run, take_run, threads_environ, train_words
from hvdtrain.wording import counted

#: Share of a step from which a part is worth a word, and what may be done about it; the largest is told.
_ADVICE = {
    "data": (0.10, "the ranks wait for samples: raise --data-workers, or offer __getitems__ for whole batches"),
    "communication": (
        0.15,
        "the reduction is exposed: raise --global-batch-size, accumulate with --backward-passes-per-step, or try "
        "--compression fp16",
    ),
    "waiting": (0.10, "ranks wait for the slowest: look at the ranks of summary.json, and give each its own cores"),
    "update": (0.25, "the optimizer is the largest part beside the model: raise --global-batch-size"),
}


#: Half the distance between the quartiles, over the median, beyond which nothing is concluded.
_NOISE = 0.2


@dataclass(frozen=True)
class BenchRequest:
    """What to measure.

    Attributes:
        sizes: Numbers of ranks, from 1.
        is_weak: Whether the global batch grows with the ranks.
        global_batch_size: Samples per update on the smallest number of ranks.
        num_steps: Steps that count, of each run.
        warm_up: Steps before them, from 1.
        repeats: Runs of each size, interleaved.
        options: More options of ``hvdtrain train``.
    """

    job: Path
    framework: str
    sizes: tuple[int, ...]
    is_weak: bool
    global_batch_size: int
    num_steps: int
    warm_up: int
    repeats: int
    options: tuple[str, ...] = ()

    def batch_of(self, size: int) -> int:
        """Return the global batch on ``size`` ranks."""
        return self.global_batch_size * size // min(self.sizes) if self.is_weak else self.global_batch_size


@dataclass
class Scale:
    """What was measured on one number of ranks.

    Attributes:
        step_ms: Every counted step of all repeats.
        splits: The split of a step of each repeat, in ms.
        memory_bytes: The most memory that a rank has had.
        num_bytes: Bytes of the weights, which are those of the gradients.
        floor_ms: What reducing them costs at the measured bandwidth, 0 for one rank.
    """

    size: int
    global_batch_size: int
    step_ms: list[float] = field(default_factory=list)
    splits: list[dict[str, float]] = field(default_factory=list)
    memory_bytes: int = 0
    num_bytes: int = 0
    floor_ms: float = 0.0

    @property
    def median_ms(self) -> float:
        """Median time of a step."""
        return statistics.median(self.step_ms)

    @property
    def spread_ms(self) -> float:
        """Half the distance between the quartiles."""
        low, _, high = statistics.quantiles(self.step_ms, n=4)
        return (high - low) / 2

    @property
    def samples_per_s(self) -> float:
        """Samples of all ranks per second."""
        return 1e3 * self.global_batch_size / self.median_ms

    @property
    def split(self) -> dict[str, float]:
        """Median of each part of a step."""
        return {name: statistics.median(split[name] for split in self.splits) for name in self.splits[0]}

    def advice(self) -> str:
        """Return the one thing to change first."""
        if self.spread_ms > _NOISE * self.median_ms:
            return "steps differ too much to say more: measure on an idle machine, or with more --steps and --repeats"
        total = sum(self.split.values()) or 1.0
        shares = {name: value / total for name, value in self.split.items()}
        among = {"data", "update"} if self.size == 1 else set(_ADVICE)
        worth = [name for name in among if shares.get(name, 0.0) >= _ADVICE[name][0]]
        if not worth:
            return "nothing stands out: the time is in the model itself"
        largest = max(worth, key=lambda name: shares[name])
        return f"{largest} takes {shares[largest]:.0%} of a step: {_ADVICE[largest][1]}"


def run_bench(request: BenchRequest, folder: Path, tell: Callable[[str], None]) -> list[Scale]:
    """Run the job on every number of ranks, ``repeats`` times in turn.

    Args:
        request: What to measure.
        folder: For run folders and logs; they are removed again, logs of failed runs excepted.
        tell: Takes a line about each run that begins.

    Raises:
        ConfigError: A run fails; the message holds the end of its log.
    """
    scales = [Scale(size, request.batch_of(size)) for size in request.sizes]
    folder.mkdir(parents=True, exist_ok=True)
    # The same threads on every number of ranks, so that one core of one rank is compared with one core of many.
    environ = threads_environ(max(request.sizes))
    total = request.repeats * len(scales)
    for number, scale in enumerate(scales * request.repeats, 1):
        steps = counted(request.warm_up + request.num_steps, "step")
        tell(f"bench: run {number} of {total}: {request.framework} on {counted(scale.size, 'rank')}, {steps}")
        _run_once(request, scale, folder, environ)
    for scale in scales:
        if scale.size > 1:
            scale.floor_ms = 1e3 * scale.num_bytes * _seconds_per_byte(scale.size, environ)
    return scales


def efficiency(scale: Scale, base: Scale) -> float:
    """Return throughput per rank over that of ``base``, 1 for perfect scaling."""
    return (scale.samples_per_s / scale.size) / (base.samples_per_s / base.size)


def as_json(request: BenchRequest, scales: Sequence[Scale]) -> dict[str, Any]:
    """Return all figures as JSON values."""
    return {
        "job": str(request.job),
        "framework": request.framework,
        "scaling": "weak" if request.is_weak else "strong",
        "scales": [
            {
                "size": scale.size,
                "global_batch_size": scale.global_batch_size,
                "median_ms": scale.median_ms,
                "spread_ms": scale.spread_ms,
                "samples_per_s": scale.samples_per_s,
                "efficiency": efficiency(scale, scales[0]),
                "memory_bytes": scale.memory_bytes,
                "num_bytes": scale.num_bytes,
                "floor_ms": scale.floor_ms,
                "split": scale.split,
                "advice": scale.advice(),
            }
            for scale in scales
        ],
    }


def _run_once(request: BenchRequest, scale: Scale, folder: Path, environ: Mapping[str, str]) -> None:
    run_dir = folder / f"{request.framework}-{scale.size}"
    shutil.rmtree(run_dir, ignore_errors=True)
    options = [
        *("--global-batch-size", str(scale.global_batch_size)),
        *("--max-steps", str(request.warm_up + request.num_steps)),
        *request.options,
    ]
    command = train_words(request.job, request.framework, run_dir, *options)
    run("bench", scale.size, command, environ, run_dir.with_suffix(".log"))
    done = take_run(run_dir)
    if done.num_steps < request.warm_up + 2:
        raise ConfigError(
            f"bench: a run must make more steps than --warm-up {request.warm_up} and 1, got {done.num_steps} on "
            f"{counted(scale.size, 'rank')}, where the job ends. Give it more --epochs, or a smaller "
            "--global-batch-size."
        )
    scale.step_ms += done.step_ms[request.warm_up - 1 :]
    scale.splits.append(done.split)
    scale.memory_bytes = max(scale.memory_bytes, done.memory_bytes)
    if done.state is not None:
        scale.num_bytes = sum(array.nbytes for array in done.state.weights.values())
    run_dir.with_suffix(".log").unlink()


def _seconds_per_byte(size: int, environ: Mapping[str, str]) -> float:
    """Return what the control plane's allreduce of several MB takes on ``size`` ranks of this host."""
    told = run("bench", size, ["python", "-m", "hvdtrain.doctor.allreduce"], environ)
    line = next(line for line in told.splitlines() if line.startswith(MARK))
    num_bytes, seconds, _ = json.loads(line.removeprefix(MARK))["times"][-1]
    return float(seconds / num_bytes)
