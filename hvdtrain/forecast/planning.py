"""Make the measurements that a forecast is made from."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.config import TrainConfig
from hvdtrain.forecast.communication import Network, fit_network
from hvdtrain.forecast.dry_run import DryRequest, DryRunner
from hvdtrain.forecast.outlook import Outlook, dry_requests, make_setup
from hvdtrain.forecast.reducing import measure_reducing
from hvdtrain.timed_run import threads_environ
from hvdtrain.wording import counted


@dataclass(frozen=True)
class PlanRequest:
    """What to plan.

    Attributes:
        job: The job file.
        framework: To run it in.
        config: Its settings, those of the command line included.
        options: Other options, for ``hvdtrain train``.
        sizes: Numbers of ranks, the smallest first.
        bandwidth: Bytes per second between ranks; ``None`` to measure it.
        latency_s: Of a message; ``None`` to measure it.
        limit: Bytes that a rank may take.
        num_local_ranks: Ranks that share a host; ``None`` for as many as there are, up to one per core of this machine.
        num_steps: Steps of a dry run that count, at least.
    """

    job: Path
    framework: str
    config: TrainConfig
    options: tuple[str, ...]
    sizes: tuple[int, ...]
    bandwidth: float | None
    latency_s: float | None
    limit: float | None
    num_local_ranks: int | None
    num_steps: int


def make_outlook(request: PlanRequest, tell: Callable[[str], None]) -> Outlook:
    """Measure what is needed: dry runs of the job, and the network where it was not given.

    Args:
        request: What to plan.
        tell: Takes a line about each measurement that begins.

    Raises:
        ConfigError: The batch numbers contradict each other, or a dry run fails.
    """
    num_local_ranks = request.num_local_ranks or min(request.sizes[-1], len(os.sched_getaffinity(0)))
    runner = DryRunner(request.job, request.framework, request.options, num_local_ranks, num_steps=request.num_steps)
    tried = dry_requests([make_setup(request.config, size, num_local_ranks) for size in request.sizes])
    runs = []
    for number, one in enumerate(tried, 1):
        tell(f"plan: dry run {number} of {len(tried)}: {_told(one)}")
        runs.append(runner.run(one))
    network = None if request.sizes[-1] == 1 else _network(request, num_local_ranks, tell)
    return Outlook(request.framework, request.config, tuple(runs), network, request.limit, num_local_ranks)


def _told(request: DryRequest) -> str:
    passes = f"{counted(request.passes, 'pass')} of {counted(request.batch_size, 'sample')}"
    return f"{counted(request.num_processes, 'process')} side by side, {passes}"


def _network(request: PlanRequest, num_local_ranks: int, tell: Callable[[str], None]) -> Network:
    bandwidth, latency_s = request.bandwidth, request.latency_s
    if bandwidth is not None and latency_s is not None:
        return Network(bandwidth, latency_s, is_measured=False)
    tell("plan: how fast Horovod sums over two ranks of this machine")
    environ = threads_environ(max(num_local_ranks, 2))
    alone, together = (measure_reducing(request.framework, size, environ) for size in (1, 2))
    found = fit_network(alone[0][1], together)
    return Network(bandwidth or found.bandwidth, latency_s or found.latency_s, is_measured=True)
