"""Samples seen -> learning rate: pure functions, the same for any number of ranks and after any number of resumes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hvdtrain.config import TrainConfig
from hvdtrain.errors import ConfigError
from hvdtrain.plan import RunPlan

#: Maps samples seen before an update to the learning rate of that update.
Schedule = Callable[[int], float]


def scaled_learning_rate(config: TrainConfig, global_batch_size: int) -> float:
    """Return the base rate under the scaling rule.

    ``linear``: Goyal et al. 2017, arXiv:1706.02677; ``sqrt``: Krizhevsky 2014, arXiv:1404.5997, which keeps the
    variance of the update.
    """
    if config.lr_scaling == "none" or config.base_batch_size is None:
        return config.learning_rate
    ratio = global_batch_size / config.base_batch_size
    return config.learning_rate * (ratio if config.lr_scaling == "linear" else math.sqrt(ratio))


def build_schedule(config: TrainConfig, plan: RunPlan) -> Schedule:
    """Return the learning rate as a function of samples seen before the update.

    Warm-up rises linearly over ``warmup_epochs`` and counts the batch about to be taken, so the first update is
    not lost to a rate of zero and the last one of warm-up has the full rate. Then ``linear`` and ``cosine`` fall
    to ``final_learning_rate`` at ``decay_epochs`` (the end of the run when not given); ``step`` multiplies by
    ``decay_factor`` every ``decay_epochs``. ``plateau`` is held by :class:`Patience`.

    Raises:
        ConfigError: The course needs the length of an epoch or of the run, and the stream has none.
    """
    batch = plan.sizes.global_batch_size
    peak = scaled_learning_rate(config, batch)
    warmup = _samples(config.warmup_epochs, plan, "warmup_epochs")
    after = _decay(config, plan, peak, warmup)

    def schedule(samples_seen: int) -> float:
        if samples_seen + batch <= warmup:
            return peak * (samples_seen + batch) / warmup
        return after(samples_seen)

    return schedule


def _decay(config: TrainConfig, plan: RunPlan, peak: float, warmup: float) -> Schedule:
    if config.decay in ("constant", "plateau"):
        return lambda samples_seen: peak
    if config.decay == "step":
        every = _samples(config.decay_epochs or 1.0, plan, "decay_epochs")
        return lambda samples_seen: peak * config.decay_factor ** int(samples_seen // every)
    end = _end_of_decay(config, plan)
    final = config.final_learning_rate
    start = min(warmup, end)

    def falling(samples_seen: int) -> float:
        part = min(max((samples_seen - start) / (end - start), 0.0), 1.0) if end > start else 1.0
        if config.decay == "cosine":  # Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts
            part = (1 - math.cos(math.pi * part)) / 2
        return peak + (final - peak) * part

    return falling


def _end_of_decay(config: TrainConfig, plan: RunPlan) -> float:
    if config.decay_epochs is not None:
        return _samples(config.decay_epochs, plan, "decay_epochs")
    if plan.total_samples is None:
        raise ConfigError(
            f"plan: decay={config.decay!r} needs the length of the run, got a stream without one. "
            "Set max_steps or steps_per_epoch with epochs, or decay_epochs."
        )
    return float(plan.total_samples)


def _samples(epochs: float, plan: RunPlan, name: str) -> float:
    if not epochs:
        return 0.0
    if plan.samples_per_epoch is None:
        raise ConfigError(f"plan: {name} needs the length of an epoch, got a stream without one. Set steps_per_epoch.")
    return epochs * plan.samples_per_epoch


@dataclass
class Patience:
    """What evaluations without gain lead to: a lower rate, or the end. Decided on global values alone.

    Attributes:
        plateau_patience: Evaluations without gain that the rate survives; ``None`` leaves the rate alone.
        decay_factor: What a drop multiplies the factor by.
        early_stop_patience: Evaluations without gain that end the run; ``None`` for never.
        factor: Factor on the learning rate now.
        best: Smallest value seen.
        since_best: Evaluations since the best one.
        since_drop: Evaluations without gain since the last drop or gain.
    """

    plateau_patience: int | None = None
    decay_factor: float = 1.0
    early_stop_patience: int | None = None
    factor: float = 1.0
    best: float = math.inf
    since_best: int = 0
    since_drop: int = 0

    @classmethod
    def of(cls, config: TrainConfig) -> Patience:
        """Return the patience that a configuration asks for."""
        plateau = config.plateau_patience if config.decay == "plateau" else None
        return cls(plateau, config.decay_factor, config.early_stop_patience)

    def state(self) -> dict[str, float | int | None]:
        """Return what a checkpoint keeps: the decisions so far, not the settings; ``best`` is None before the first."""
        best = self.best if math.isfinite(self.best) else None
        return {"factor": self.factor, "best": best, "since_best": self.since_best, "since_drop": self.since_drop}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what :meth:`state` returned."""
        self.factor, self.since_best, self.since_drop = (state[n] for n in ("factor", "since_best", "since_drop"))
        self.best = math.inf if state["best"] is None else state["best"]

    def update(self, value: float | None) -> bool:
        """Take the loss of one evaluation, lower is better; return whether the run should end."""
        if value is not None and value < self.best:
            self.best, self.since_best, self.since_drop = value, 0, 0
            return False
        self.since_best += 1
        self.since_drop += 1
        if self.plateau_patience is not None and self.since_drop > self.plateau_patience:
            self.factor, self.since_drop = self.factor * self.decay_factor, 0
        return self.is_exhausted

    @property
    def is_exhausted(self) -> bool:
        """Whether enough evaluations passed without gain to end the run."""
        return self.early_stop_patience is not None and self.since_best >= self.early_stop_patience
