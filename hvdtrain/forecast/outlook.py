"""The forecast itself: from dry runs and a network to memory, time and efficiency for each number of ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hvdtrain.batching import BatchSizes, resolve_batch_sizes, share_bounds
from hvdtrain.config import TrainConfig
from hvdtrain.forecast.communication import Network, exposed_seconds, ring_seconds
from hvdtrain.forecast.dry_run import DryRequest, DryRun
from hvdtrain.forecast.line import Line
from hvdtrain.forecast.memory import Fit, fit_batch, reduction_bytes, sharding_saves

#: Dry runs of one plan, at most.
_MAX_RUNS = 3

#: Below this efficiency more than half of the ranks' time is lost.
_WORTHWHILE = 0.5


@dataclass(frozen=True)
class Setup:
    """One number of ranks.

    Attributes:
        num_ranks: Of the run.
        sizes: Its batch arithmetic.
        num_local_ranks: Ranks that share this host's cores.
    """

    num_ranks: int
    sizes: BatchSizes
    num_local_ranks: int

    @property
    def share(self) -> int:
        """Samples of the rank that has the most in an update."""
        start, stop = share_bounds(self.sizes.global_batch_size, rank=0, size=self.num_ranks)
        return stop - start

    def request(self) -> DryRequest:
        """Return the dry run that a rank of this setup is like."""
        batch_size = min(self.sizes.batch_size, self.share)
        return DryRequest(self.num_local_ranks, self.share, batch_size, -(-self.share // batch_size))


def make_setup(config: TrainConfig, num_ranks: int, num_local_ranks: int) -> Setup:
    """Return the setup of ``num_ranks`` ranks, of which at most ``num_local_ranks`` share a host.

    Raises:
        ConfigError: The batch numbers contradict each other.
    """
    sizes = resolve_batch_sizes(
        size=num_ranks,
        global_batch_size=config.global_batch_size,
        batch_size=config.batch_size,
        backward_passes_per_step=config.backward_passes_per_step,
    )
    return Setup(num_ranks, sizes, min(num_ranks, num_local_ranks))


def dry_requests(setups: Sequence[Setup]) -> list[DryRequest]:
    """Return what to try: the fewest ranks, the most, those in the middle, and always two sizes of a micro-batch.

    The line of the memory needs two; a half or a double one is added where all setups have the same.
    """
    if len(setups) > _MAX_RUNS:
        setups = [setups[0], setups[len(setups) // 2], setups[-1]]
    requests = list(dict.fromkeys(setup.request() for setup in setups))
    if len({request.batch_size for request in requests}) == 1:
        last = requests[-1]
        other = last.batch_size // 2 or 2
        requests.append(DryRequest(last.num_processes, other, other, 1))
    return requests


@dataclass(frozen=True)
class Row:
    """The forecast for one number of ranks; times in seconds, memory in bytes, both of one rank.

    Attributes:
        setup: What it is for.
        memory: At its peak.
        fit: How to cut the share so that it fits; ``None`` where no limit was given.
        compute: A step without communication, of the slowest rank.
        communication: Summing the gradients.
        exposed: The part of it that no computation hides: all, because this version sends behind the backward pass.
        overlapped: That part in the best case, if gradients were sent while others are computed.
        is_measured: Whether a dry run was made for this number of ranks, or ``compute`` lies on the line.
        sharding_saves: Bytes of optimizer slots that sharding would save.
    """

    setup: Setup
    memory: float
    fit: Fit | None
    compute: float
    communication: float
    exposed: float
    overlapped: float
    is_measured: bool
    sharding_saves: int

    @property
    def fits(self) -> bool:
        """Whether the planned samples per pass fit below the limit."""
        return self.fit is None or self.fit.batch_size >= self.setup.request().batch_size

    @property
    def step(self) -> float:
        """Time of an update."""
        return self.compute + self.exposed

    @property
    def samples_per_s(self) -> float:
        """Samples of all ranks per second."""
        return self.setup.sizes.global_batch_size / self.step

    @property
    def weak_efficiency(self) -> float:
        """Part of a step in which ranks compute: throughput per rank over that of ranks that never communicate."""
        return self.compute / self.step

    def efficiency(self, base: Row) -> float:
        """Return throughput per rank over that of ``base``, 1 for perfect scaling."""
        return (self.samples_per_s / self.setup.num_ranks) / (base.samples_per_s / base.setup.num_ranks)


@dataclass(frozen=True)
class Outlook:
    """Everything that a forecast is made from.

    Attributes:
        framework: Of the run.
        config: Settings of the run.
        runs: Dry runs, one or more.
        network: Between ranks; ``None`` for plans of one rank.
        limit: Bytes that a rank has; ``None`` where not given.
        num_local_ranks: Ranks that share a host.
    """

    framework: str
    config: TrainConfig
    runs: tuple[DryRun, ...]
    network: Network | None
    limit: float | None
    num_local_ranks: int

    @property
    def sent_bytes(self) -> int:
        """Bytes of the gradients as they are sent."""
        gradients = self.runs[0].model.gradients
        return gradients if self.config.compression == "none" else gradients // 2

    def reduction_bytes(self, num_ranks: int) -> int:
        """Return the bytes that summing over ranks needs."""
        return reduction_bytes(self.framework, num_ranks, self.sent_bytes, os.environ)

    def memory_line(self, num_ranks: int) -> Line:
        """Return the bytes of a rank by samples per pass."""
        line = Line.through([(float(run.request.batch_size), float(run.memory_bytes)) for run in self.runs])
        return replace(line, base=line.base + self.reduction_bytes(num_ranks))

    def row(self, num_ranks: int) -> Row:
        """Return the forecast for ``num_ranks`` ranks."""
        setup = make_setup(self.config, num_ranks, self.num_local_ranks)
        request = setup.request()
        same = next((run for run in self.runs if run.request == request), None)
        compute = self._compute(same, setup)
        communication = 0.0 if self.network is None else ring_seconds(num_ranks, self.sent_bytes, self.network)
        per_sample = max(run.pass_s / run.request.batch_size for run in self.runs)
        pass_s = same.pass_s if same is not None else per_sample * request.batch_size
        line = self.memory_line(num_ranks)
        fit = None if self.limit is None else fit_batch(line, self.limit, setup.share, request.batch_size)
        return Row(
            setup,
            line.at(request.batch_size) if same is None else float(same.memory_bytes + self.reduction_bytes(num_ranks)),
            fit,
            compute,
            communication,
            exposed_seconds(communication, pass_s, overlaps=False),
            exposed_seconds(communication, pass_s, overlaps=True),
            same is not None,
            sharding_saves(self.runs[0].model.slots, num_ranks),
        )

    def last_worthwhile(self, base: Row) -> int | None:
        """Return the most ranks, doubled from ``base``, that still have half of its efficiency or more.

        ``None`` where that ends only with a single sample per rank.
        """
        best = base.setup.num_ranks
        while best * 2 <= base.setup.sizes.global_batch_size:
            if self.row(best * 2).efficiency(base) < _WORTHWHILE:
                return best
            best *= 2
        return None

    def _compute(self, same: DryRun | None, setup: Setup) -> float:
        if same is not None:
            return same.slowest_of(setup.num_ranks)
        points = [(float(run.request.share), run.slowest_of(setup.num_ranks)) for run in self.runs]
        return Line.through(points).at(setup.share)


def as_json(outlook: Outlook, rows: Sequence[Row], facts: Mapping[str, object]) -> dict[str, object]:
    """Return all figures as JSON values: times in seconds, memory in bytes, bandwidth in bytes per second."""
    model, line, network = outlook.runs[0].model, outlook.memory_line(1), outlook.network
    return {
        **facts,
        "model": {**vars(model)},
        "memory": {"base": line.base, "per_sample": line.slope, "limit": outlook.limit},
        "network": network and {**vars(network)},
        "dry_runs": [
            {**vars(run.request), "median_s": run.slowest_of(1), "pass_s": run.pass_s, "memory": run.memory_bytes}
            for run in outlook.runs
        ],
        "rows": [_row_json(row, rows[0]) for row in rows],
        "last_worthwhile": outlook.last_worthwhile(rows[0]),
    }


def _row_json(row: Row, base: Row) -> dict[str, object]:
    sizes = row.setup.sizes
    return {
        "size": row.setup.num_ranks,
        "global_batch_size": sizes.global_batch_size,
        "batch_size": sizes.batch_size,
        "backward_passes_per_step": sizes.backward_passes_per_step,
        "memory": row.memory,
        # JSON has no infinity
        "fit": row.fit and {"batch_size": row.fit.batch_size, "backward_passes_per_step": row.fit.passes},
        "compute_s": row.compute,
        "communication_s": row.communication,
        "exposed_s": row.exposed,
        "overlapped_s": row.overlapped,
        "step_s": row.step,
        "samples_per_s": row.samples_per_s,
        "efficiency": row.efficiency(base),
        "weak_efficiency": row.weak_efficiency,
        "is_measured": row.is_measured,
        "sharding_saves": row.sharding_saves,
    }
