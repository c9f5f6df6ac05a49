"""What must hold after every case: one process's weights, equal bits after a resume, and checkpoints that all load."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hvdtrain.callbacks import Callback
from hvdtrain.checkpoint import list_checkpoints, load
from hvdtrain.config import TrainConfig
from hvdtrain.optimizers import define
from hvdtrain.resume import ResumeRequest
from tests.harness import assert_on_all_ranks
from tests.parallel.fitting import Fitter, Run, snapshot
from tests.parallel.reference import LEARNING_RATE, iter_global_batches

RESUME = ResumeRequest(is_wanted=True)


class AtBegin(Callback):
    """Keeps weights, slots and step as they are before the first update."""

    def on_fit_begin(self, trainer: Any) -> None:
        self.weights, self.slots = snapshot(trainer)
        self.step = trainer.counters.global_step


def weight_of_one_process(
    samples: Sequence[float],
    global_batch_size: int,
    *,
    epochs: int = 1,
    seed: int | None = None,
    max_steps: int | None = None,
    start: float = 0.0,
    **settings: Any,
) -> float:
    """Return ``w`` after a canonical optimizer on the loss ``w x``, in float64; batches that are not finite count not.

    ``settings`` are fields of TrainConfig, the optimizer's name under ``rule``.
    """
    config = TrainConfig(**{"learning_rate": LEARNING_RATE, "optimizer": settings.pop("rule", "sgd"), **settings})
    definition = define(config)
    w, t, slots = np.float64(start), 0, {name: np.zeros(()) for name in definition.slots}
    for batch in islice(iter_global_batches(samples, global_batch_size, epochs=epochs, seed=seed), max_steps):
        gradient = np.float64(sum(batch) / len(batch))
        if np.isfinite(gradient):
            t += 1
            w = definition.update(config, w, gradient, slots, config.learning_rate, t)
    return float(w)


def loadable_steps(run_dir: Path) -> list[int]:
    """Load every checkpoint of a run folder and return their steps, oldest first."""
    paths = list_checkpoints(run_dir / "checkpoints")
    for path in paths:
        load(path)
    return [int(path.name.removeprefix("step-")) for path in paths]


def require_whole(run_dir: Path, steps: Sequence[int]) -> None:
    """Fail unless a run folder holds the checkpoints of these steps alone, all of which load, and nothing half done."""
    assert loadable_steps(run_dir) == list(steps)
    names = {path.name for path in (run_dir / "checkpoints").iterdir()}
    assert names == {f"step-{step:08d}" for step in steps}
    assert not (run_dir / ".lock").exists()


def bits(run: Run) -> dict[str, tuple[str, bytes]]:
    """Return the exact bits of all weights and slots."""
    return {name: (array.dtype.str, array.tobytes()) for name, array in {**run.weights, **run.slots}.items()}


def require_run(toy: Fitter, folder: Path, steps: Sequence[int]) -> None:
    """Fail on all ranks unless the root's run folder is in order and no other rank has one."""
    if toy.rank == 0:
        require_whole(folder, steps)
    assert_on_all_ranks(toy.communicator, toy.rank == 0 or not folder.exists(), f"has a run folder: {folder}")


def require_round_trip(toy: Fitter, folder: Path, **settings: Any) -> None:
    """Fail unless the slots of a resumed run are those of the file on all ranks, and its end the undisturbed one."""
    data = [{"x": row} for row in np.random.default_rng(1).normal(size=(10, 3)).astype(np.float32)]
    settings |= {"model": lambda: toy.toy.random_model(toy.rank), "global_batch_size": 3, "learning_rate": 0.01}
    whole = toy.fit(data, **settings)
    toy.fit(data, run_dir=folder, max_steps=2, **settings)
    begin = AtBegin()
    run = toy.fit(data, run_dir=folder, resume=RESUME, callbacks=[begin], **settings)
    saved = load(folder / "checkpoints" / "step-00000002").state if toy.rank == 0 else None
    saved = toy.communicator.broadcast(saved)
    assert saved.slots
    for name, arrays in (("weights", saved.weights), ("slots", saved.slots)):
        held = getattr(begin, name)
        wrong = [n for n in {*held, *arrays} if n not in arrays or not np.array_equal(held.get(n), arrays[n])]
        assert_on_all_ranks(toy.communicator, wrong == [], f"{name} that are not those of the file: {wrong}")
    assert bits(run) == bits(whole)
    require_run(toy, folder, [2, 4])
