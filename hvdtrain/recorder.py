"""Counters of a run, and the rows of metrics made from its steps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hvdtrain.metrics import Meter
from hvdtrain.step import StepResult


@dataclass
class Counters:
    """Where a run stands.

    Attributes:
        epoch: Epochs begun; the first one is 1.
        step_in_epoch: Updates done in this epoch.
        global_step: Updates done in all.
        samples_seen: Samples used in all.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    global_step: int = 0
    samples_seen: int = 0


class Recorder:
    """Turns steps into rows: exact means since the last row, and throughput."""

    def __init__(self, counters: Counters, log_every_steps: int) -> None:
        """Start the clock."""
        self._counters = counters
        self._every = log_every_steps
        self._window = Meter(["loss"])
        self._epoch = Meter(["loss"])
        self._began = self._row_began = time.perf_counter()
        self._row_samples = self._trained_samples = 0
        self._paused_s = 0.0

    def start_clock(self) -> None:
        """Count time from now on, when training begins."""
        self._began = self._row_began = time.perf_counter()

    def sums(self) -> dict[str, list[list[float]]]:
        """Return the sums that the next row and the epoch's mean start from, for a checkpoint."""
        return {"window": self._window.sums(), "epoch": self._epoch.sums()}

    def restore(self, saved: Mapping[str, list[list[float]]]) -> None:
        """Go on from the sums that a checkpoint holds."""
        self._window.restore(saved["window"])
        self._epoch.restore(saved["epoch"])

    def begin_epoch(self) -> None:
        """Start the mean of a new epoch."""
        self._epoch.reset()

    def add(self, result: StepResult) -> None:
        """Take one step into the means; ``counters`` already count it."""
        sums = {"loss": (result.loss_sum, result.weight_sum)}
        if result.is_finite:
            self._window.add(sums)
            self._epoch.add(sums)
        self._row_samples += result.num_samples
        self._trained_samples += result.num_samples

    def train_row(self, result: StepResult, lr: float, *, is_last_of_epoch: bool) -> dict[str, Any] | None:
        """Return the row of this step, or ``None`` when none is due."""
        if self._counters.global_step % self._every and not is_last_of_epoch:
            return None
        now = time.perf_counter()
        seconds = max(now - self._row_began, 1e-9)
        row = {
            **self._head("train"),
            **self._window.means(),
            "grad_norm": result.grad_norm if result.is_finite else None,  # JSON has no NaN
            "learning_rate": lr,
            "samples_per_s": self._row_samples / seconds,
            "time_s": now - self._began,
        }
        self._window.reset()
        self._row_began, self._row_samples = now, 0
        return row

    def eval_row(self, means: dict[str, float | None]) -> dict[str, Any]:
        """Return the row of an evaluation."""
        return {**self._head("eval"), **means, "time_s": time.perf_counter() - self._began}

    def pause(self, seconds: float) -> None:
        """Leave ``seconds`` of evaluation or saving out of the training throughput."""
        self._paused_s += seconds
        self._row_began += seconds

    def epoch_means(self) -> dict[str, float | None]:
        """Return the means of the epoch so far."""
        return self._epoch.means()

    def elapsed_s(self) -> float:
        """Return the seconds since training began."""
        return time.perf_counter() - self._began

    def samples_per_s(self) -> float:
        """Return the training throughput of the whole run."""
        return self._trained_samples / max(self.elapsed_s() - self._paused_s, 1e-9)

    def _head(self, event: str) -> dict[str, Any]:
        c = self._counters
        return {"event": event, "epoch": c.epoch, "global_step": c.global_step, "samples_seen": c.samples_seen}
