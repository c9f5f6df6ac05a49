"""A trainer for one linear model in NumPy: the loop of the package, with every hook small enough to check by eye."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hvdtrain.callbacks import Callback
from hvdtrain.config import TrainConfig
from hvdtrain.data import MicroBatch
from hvdtrain.hooks import Signature
from hvdtrain.metrics import require_elements
from hvdtrain.optimizers import define
from hvdtrain.portable import PortableState, require_same_tensors
from hvdtrain.step import StepResult, StepVotes, clip_factor
from hvdtrain.trainer import Trainer

Array = NDArray[np.float64]


@dataclass
class Linear:
    """``y = x . weight + bias``, in float64."""

    weight: Array = field(default_factory=lambda: np.zeros(2))
    bias: Array = field(default_factory=lambda: np.zeros(1))

    def __call__(self, x: Array) -> Array:
        return x @ self.weight + self.bias[0]


def squared_error(model: Linear, batch: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return one loss and one weight per sample; a sample without ``weight`` weighs 1."""
    losses = (model(batch["x"]) - batch["y"]) ** 2
    return losses, batch.get("weight", np.ones_like(losses))


#: The batches of ten samples in their own order.
TEN = [range(0, 4), range(4, 8), range(8, 10)]


def close(values):
    """Return what equals ``values`` but for the rounding of float64."""
    return pytest.approx(list(values), rel=1e-12, abs=1e-12)


class NumpyTrainer(Trainer):
    """Fills the hooks; the gradient is that of ``squared_error``, whatever ``loss`` the caller gives."""

    framework = "torch"  # names the versions in the manifest; nothing of it is imported

    def start(self) -> None:
        self.calls = ["start"]
        self.rates: list[float] = []
        self.model: Linear = self.model if isinstance(self.model, Linear) else self.model()

    def prepare(self, probe: MicroBatch) -> Signature:
        self.calls.append("prepare")
        self._definition, self._updates = define(self.config), np.zeros(())
        self._slots = {
            name: {slot: np.zeros_like(array) for slot in self._definition.slots}
            for name, array in self._weights().items()
        }
        values = self.loss(self.model, self.make_batch(probe))
        parts = values if isinstance(values, tuple) else (values,)
        require_elements("loss", [np.shape(part) for part in parts], probe.num_samples, "no mean")
        names = self.metrics(self.model, self.make_batch(probe)) if self.metrics else {}
        return Signature(self._state().signature(), ("loss", *names))

    def broadcast_state(self) -> None:
        self.calls.append("broadcast_state")
        for array in self._weights().values():
            array[...] = self.communicator.broadcast(array)

    def make_batch(self, micro_batch: MicroBatch) -> dict[str, Array]:
        return {name: np.asarray(array, dtype=np.float64) for name, array in micro_batch.data.items()}

    def train_step(self, micro_batches: Sequence[Any], *, lr: float, votes: StepVotes) -> StepResult:
        self.calls.append("train_step")
        self.rates.append(lr)
        size = len(self.model.weight)
        gradient, loss_sum, weight_sum = np.zeros(size + 1), 0.0, 0.0
        for batch in micro_batches:
            losses, weights = self.loss(self.model, batch)
            slopes = 2 * weights * (self.model(batch["x"]) - batch["y"])
            gradient += [*(slopes @ batch["x"]), slopes.sum()]
            loss_sum, weight_sum = loss_sum + (weights * losses).sum(), weight_sum + weights.sum()
        vector = votes.vector(loss_sum, weight_sum, float(np.linalg.norm(gradient)) if self.config.noise_scale else 0.0)
        sums = self.communicator.allreduce_sum(np.array([*gradient, *vector]))
        gradient, fields = sums[: size + 1], sums[size + 1 :]
        gradient = gradient / fields[1] if fields[1] else np.zeros(size + 1)
        parts = {"weight": gradient[:size], "bias": gradient[size:]}
        norms = {name: float(np.linalg.norm(part)) for name, part in parts.items()} if self.trace_every_steps else {}
        result = StepResult.from_sums(fields.tolist(), float(np.linalg.norm(gradient)), norms)
        if result.is_finite and result.weight_sum:
            factor = clip_factor(result.grad_norm, self.config.clip_norm)
            self._apply({name: factor * part for name, part in parts.items()}, lr)
        return result

    def is_finite(self, batch: dict[str, Array]) -> bool:
        losses, weights = self.loss(self.model, batch)
        slopes = 2 * weights * (self.model(batch["x"]) - batch["y"])
        return bool(np.isfinite(losses).all() and np.isfinite(slopes @ batch["x"]).all())

    def average_statistics(self) -> None:
        self.calls.append("average_statistics")

    def eval_step(self, batch: dict[str, Array]) -> dict[str, tuple[float, float]]:
        self.calls.append("eval_step")
        losses, weights = self.loss(self.model, batch)
        found = {"loss": (float((weights * losses).sum()), float(weights.sum()))}
        for name, values in (self.metrics(self.model, batch) if self.metrics else {}).items():
            found[name] = (float(np.sum(values)), float(np.size(values)))
        return found

    def export_state(self) -> PortableState:
        self.calls.append("export_state")
        return self._state()

    def import_state(self, state: PortableState) -> None:
        self.calls.append("import_state")
        mine = self._state()
        pairs = [(mine.weights, state.weights), *([(mine.slots, state.slots)] if state.slots else [])]
        for have, given in pairs:
            shapes = [{name: array.shape for name, array in tensors.items()} for tensors in (have, given)]
            require_same_tensors("import_state", *shapes)
            for name, array in have.items():
                array[...] = given[name]

    def stop(self) -> None:
        self.calls.append("stop")

    def _weights(self) -> dict[str, Array]:
        return {"weight": self.model.weight, "bias": self.model.bias}

    def _state(self) -> PortableState:
        slots = {f"{name}/{slot}": array for name, held in self._slots.items() for slot, array in held.items()}
        counts = {f"{name}/step": self._updates for name, held in self._slots.items() if held}
        return PortableState(self._weights(), {**slots, **counts})

    def _apply(self, gradients: Mapping[str, Array], lr: float) -> None:
        self._updates += 1
        for name, array in self._weights().items():
            update = self._definition.update
            array[...] = update(self.config, array, gradients[name], self._slots[name], lr, int(self._updates))


def train_linear(xs: Array, ys: Array, batches: Sequence[Sequence[int]], *, lr: float) -> Array:
    """Return ``[*weight, bias]`` after plain gradient descent on these batches, in one process, from zero."""
    inputs = np.column_stack([xs, np.ones(len(xs))]).astype(np.float64)
    w = np.zeros(inputs.shape[1])
    for rows in batches:
        x, y = inputs[list(rows)], np.asarray(ys, dtype=np.float64)[list(rows)]
        w = w - lr * 2 * x.T @ (x @ w - y) / len(y)
    return w


class Samples:
    """A data set of ``{"x", "y"}``, with ``weight`` when given."""

    def __init__(self, xs: Array, ys: Array, weights: Array | None = None) -> None:
        columns = {"x": xs, "y": ys} if weights is None else {"x": xs, "y": ys, "weight": weights}
        self.columns = {name: np.asarray(column, dtype=np.float32) for name, column in columns.items()}

    def __len__(self) -> int:
        return len(self.columns["y"])

    def __getitem__(self, index: int) -> dict[str, Array]:
        return {name: column[index] for name, column in self.columns.items()}


def make_samples(num_samples: int) -> Samples:
    """Return small whole numbers, so that float32 holds them exactly."""
    numbers = np.arange(num_samples)
    return Samples(np.column_stack([numbers % 3 - 1, numbers % 4 - 2]), numbers % 5 - 2)


def trainer_of(
    callbacks=(), *, run_dir=None, loss=squared_error, metrics=None, model=None, augment=None, resume=None, **settings
):
    config = {"global_batch_size": 4, "learning_rate": 0.05, "shuffle": False, "log_every_steps": 1, **settings}
    return NumpyTrainer(
        model or Linear(),
        loss=loss,
        metrics=metrics,
        config=TrainConfig(**config),
        run_dir=run_dir,
        callbacks=callbacks,
        augment=augment,
        resume=resume,
    )


def weights_of(trainer):
    return [*trainer.model.weight, *trainer.model.bias]


def rows_of(folder, event=None):
    def refuse(constant):
        raise ValueError(f"{constant} is no JSON")

    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    return [row for row in rows if event in (None, row["event"])]


class Watcher(Callback):
    """Notes which hook was called and with what."""

    def __init__(self):
        self.seen, self.rows, self.summary = [], [], None

    def on_fit_begin(self, trainer):
        self.seen.append("on_fit_begin")

    def on_step_end(self, trainer, report):
        self.seen.append(f"on_step_end {report.epoch}.{report.global_step}")
        self.rows.append(report.row)

    def on_epoch_end(self, trainer, epoch):
        self.seen.append(f"on_epoch_end {epoch}")

    def on_evaluate(self, trainer, row):
        self.seen.append(f"on_evaluate {row['global_step']}")

    def on_checkpoint(self, trainer, path):
        self.seen.append(f"on_checkpoint {path.name}")

    def on_fit_end(self, trainer, summary):
        self.seen.append("on_fit_end")
        self.summary = summary


class AtStep(Callback):
    """Does something in one hook of one step."""

    def __init__(self, action, step=1, hook="on_step_end"):
        self.action, self.step = action, step
        setattr(self, hook, self.act)

    def act(self, trainer, *arguments):
        if trainer.counters.global_step == self.step:
            self.action(trainer)
