"""Fit a toy inside a rank, and prove after every fit that all ranks hold the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from hvdtrain.callbacks import Callback
from hvdtrain.config import TrainConfig
from tests.harness import assert_on_all_ranks
from tests.parallel.reference import LEARNING_RATE


@dataclass(frozen=True)
class Run:
    """What a fit left: its trainer, its summary, and copies of weights and slots."""

    trainer: Any
    summary: dict[str, Any]
    weights: dict[str, np.ndarray]
    slots: dict[str, np.ndarray]

    @property
    def w(self) -> float:
        """The toy's one weight."""
        return float(self.weights["w"])


@dataclass
class Fitter:
    """Makes trainers of one framework on this rank."""

    toy: ModuleType
    communicator: Any

    @property
    def rank(self) -> int:
        return self.communicator.topology.rank

    @property
    def size(self) -> int:
        return self.communicator.topology.size

    def trainer(self, model: Any = None, *, kind: str = "Trainer", **arguments: Any) -> Any:
        """Return a trainer; settings of TrainConfig and arguments of the constructor may be mixed."""
        names = ("loss", "metrics", "optimizer", "run_dir", "callbacks", "augment", "collate", "init_from", "resume")
        own = {name: arguments.pop(name) for name in names if name in arguments}
        settings = {"learning_rate": LEARNING_RATE, "shuffle": False, **arguments}
        if "rule" in settings:  # the name of a canonical one, where ``optimizer`` is a native one
            settings["optimizer"] = settings.pop("rule")
        own.setdefault("loss", loss)
        cls = self._held if kind == "HeldTrainer" else getattr(self.toy, kind)
        return cls(model or self.toy.Toy, config=TrainConfig(**settings), **own)

    @property
    def _held(self) -> type:
        """A trainer that keeps what ``stop`` gives back, so that its hooks can be called after ``fit``."""
        return type("HeldTrainer", (self.toy.Trainer,), {"stop": lambda trainer: None})

    def fit(self, samples: Sequence[Any], *, eval_samples: Sequence[Any] | None = None, **arguments: Any) -> Run:
        """Fit, then require equal weights, slots, counters and learning rate on all ranks."""
        trainer = self.trainer(**arguments)
        summary = trainer.fit(as_data(samples), None if eval_samples is None else as_data(eval_samples))
        run = Run(trainer, summary, *snapshot(trainer))
        self.require_equal(run)
        return run

    def require_equal(self, run: Run) -> None:
        """Fail on all ranks unless all hold the same bits, counters and results."""
        held = {name: array.tobytes() for name, array in {**run.weights, **run.slots}.items()}
        timed = ("samples_per_s", "time_s", "split", "ranks", "session")
        told = {name: value for name, value in run.summary.items() if name not in timed}
        gathered = self.communicator.all_gather((held, told, run.trainer.counters))
        assert_on_all_ranks(
            self.communicator, gathered[self.rank] == gathered[0], f"differs from the root: {gathered[self.rank]}"
        )


def loss(model: Any, batch: Any) -> Any:
    """Return ``w x`` for every sample."""
    return model(batch["x"])


def as_data(samples: Sequence[Any]) -> Sequence[Any]:
    """Return a data set of ``{"x": number}``; what is a data set of dicts already stays."""
    if hasattr(samples, "accessed") or (len(samples) and isinstance(samples[0], dict)):
        return samples
    return [{"x": np.float32(x)} for x in samples]


def snapshot(trainer: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return copies of a trainer's weights and slots."""
    state = trainer.export_state()
    return ({n: np.array(a) for n, a in state.weights.items()}, {n: np.array(a) for n, a in state.slots.items()})


class Recorded:
    """A data set of ``{"x": number}`` that remembers which rows were read."""

    def __init__(self, samples: Sequence[float]) -> None:
        self.samples = samples
        self.accessed: list[int] = []

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> dict[str, Any]:
        self.accessed.append(row)
        return {"x": np.float32(self.samples[row])}


class Steps(Callback):
    """Remembers rows of metrics and, after each step, the one weight."""

    def __init__(self) -> None:
        self.ws: list[float] = []
        self.rows: list[dict[str, Any]] = []
        self.eval_rows: list[dict[str, Any]] = []

    def on_step_end(self, trainer: Any, report: Any) -> None:
        self.ws.append(float(trainer.export_state().weights["w"]))
        self.rows.append(report.row)

    def on_evaluate(self, trainer: Any, row: Any) -> None:
        self.eval_rows.append(dict(row))


class AtEnd(Callback):
    """Calls a function after each epoch."""

    def __init__(self, action: Callable[[int], None]) -> None:
        self._action = action

    def on_epoch_end(self, trainer: Any, epoch: int) -> None:
        self._action(epoch)


def run_files(folder: Path) -> list[str]:
    """Return the names in a run folder."""
    return sorted(path.name for path in folder.iterdir())
