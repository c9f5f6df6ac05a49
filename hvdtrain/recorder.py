"""Counters of a run, and the rows of metrics made from its steps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hvdtrain.metrics import Meter
from hvdtrain.noise_scale import NoiseScale
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
    """Turns steps into rows: exact means since the last row, and throughput.

    A run that is continued is one run of several *sessions*, one per process. Time and throughput are those of all of
    them; work that was lost between the last checkpoint and a kill is in none. Throughput leaves out the first step of
    each session, in which frameworks trace, compile and allocate.
    """

    def __init__(self, counters: Counters, log_every_steps: int, noise_scale: NoiseScale | None = None) -> None:
        """Start the clock; ``noise_scale`` adds its estimate to rows and summary."""
        self._counters = counters
        self._every = log_every_steps
        self._noise_scale = noise_scale
        self._window = Meter(["loss"])
        self._epoch = Meter(["loss"])
        self._began = self._row_began = time.perf_counter()
        self._row_samples = 0
        self._paused_s = 0.0
        self._steady = _Steady()
        self._earlier = {"time_s": 0.0, "steady_s": 0.0, "steady_samples": 0}

    def start_clock(self) -> None:
        """Count time from now on, when training begins."""
        self._began = self._row_began = time.perf_counter()

    def sums(self) -> dict[str, Any]:
        """Return the sums that the next row, the epoch's mean and the clock go on from, for a checkpoint."""
        noise = {} if self._noise_scale is None else {"noise_scale": self._noise_scale.state()}
        return {"window": self._window.sums(), "epoch": self._epoch.sums(), "clock": self._clock(), **noise}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from the sums that a checkpoint holds; one of an earlier version knows no clock."""
        self._window.restore(saved["window"])
        self._epoch.restore(saved["epoch"])
        self._earlier = {**self._earlier, **saved.get("clock", {})}
        if self._noise_scale is not None and "noise_scale" in saved:
            self._noise_scale.restore(saved["noise_scale"])

    def begin_epoch(self) -> None:
        """Start the mean of a new epoch."""
        self._epoch.reset()

    def add(self, result: StepResult) -> None:
        """Take one step into the means; ``counters`` already count it."""
        sums = {"loss": (result.loss_sum, result.weight_sum)}
        if result.is_finite:
            self._window.add(sums)
            self._epoch.add(sums)
        if self._noise_scale is not None:
            self._noise_scale.add(result)
        self._row_samples += result.num_samples
        self._steady.add(result.num_samples, self.elapsed_s() - self._paused_s)

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
            **({} if self._noise_scale is None else {"noise_scale": self._noise_scale.value}),
            "samples_per_s": self._row_samples / seconds,
            "time_s": self.run_s(),
        }
        self._window.reset()
        self._row_began, self._row_samples = now, 0
        return row

    def eval_row(self, means: dict[str, float | None]) -> dict[str, Any]:
        """Return the row of an evaluation."""
        return {**self._head("eval"), **means, "time_s": self.run_s()}

    def pause(self, seconds: float) -> None:
        """Leave ``seconds`` of evaluation or saving out of the training throughput."""
        self._paused_s += seconds
        self._row_began += seconds

    def epoch_means(self) -> dict[str, float | None]:
        """Return the means of the epoch so far."""
        return self._epoch.means()

    def noise_facts(self, global_batch_size: int) -> dict[str, Any]:
        """Return what the summary says of the noise scale; empty where nobody asked for it."""
        return {} if self._noise_scale is None else self._noise_scale.facts(global_batch_size)

    def elapsed_s(self) -> float:
        """Return the seconds of this session since training began."""
        return time.perf_counter() - self._began

    def run_s(self) -> float:
        """Return the seconds of training of the whole run, earlier sessions included."""
        return self._earlier["time_s"] + self.elapsed_s()

    def samples_per_s(self) -> float:
        """Return the samples of all ranks per second of training, over all sessions without their first steps."""
        clock = self._clock()
        return (
            clock["steady_samples"] / max(clock["steady_s"], 1e-9) if clock["steady_samples"] else self._steady.rate()
        )

    def session(self) -> dict[str, float]:
        """Return what this session has done: ``steps``, ``time_s``, and ``samples_per_s`` without its first step."""
        return {"steps": self._steady.num_steps, "time_s": self.elapsed_s(), "samples_per_s": self._steady.rate()}

    def _clock(self) -> dict[str, float]:
        return {
            "time_s": self.run_s(),
            "steady_s": self._earlier["steady_s"] + self._steady.seconds,
            "steady_samples": self._earlier["steady_samples"] + self._steady.num_samples,
        }

    def _head(self, event: str) -> dict[str, Any]:
        c = self._counters
        return {"event": event, "epoch": c.epoch, "global_step": c.global_step, "samples_seen": c.samples_seen}


class _Steady:
    """Steps of one session behind its first one.

    Attributes:
        num_steps: Steps in all, the first one included.
        num_samples: Samples of the steps behind it.
        seconds: Their time, evaluations and saves left out.
    """

    def __init__(self) -> None:
        self.num_steps = self.num_samples = 0
        self.seconds = 0.0
        self._first_samples, self._first_s = 0, 0.0

    def add(self, num_samples: int, now_s: float) -> None:
        """Take one step that ended after ``now_s`` seconds of training."""
        self.num_steps += 1
        if self.num_steps == 1:
            self._first_samples, self._first_s = num_samples, now_s
        else:
            self.num_samples += num_samples
            self.seconds = now_s - self._first_s

    def rate(self) -> float:
        """Return samples per second; of the first step where there is no other, 0 where there is none."""
        if self.num_steps > 1:
            return self.num_samples / max(self.seconds, 1e-9)
        return self._first_samples / max(self._first_s, 1e-9) if self.num_steps else 0.0
