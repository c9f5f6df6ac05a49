"""Faults that are real, at a chosen rank, step and point: the process that trains kills, freezes or starves itself.

A job file calls :func:`install`. Where the environment names a fault, every trainer of the process is armed when it
begins to fit: its own hooks are wrapped, in the one rank that the fault is for.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hvdtrain.callbacks import Callback
from hvdtrain.communicator import launched_as
from hvdtrain.trainer import Trainer

ENV = "HVDTRAIN_TEST_FAULT"
#: What each bad batch overwrites, and with what; a batch without weight must leave no trace, as a skipped one.
BATCHES = {"non-finite": ("x", np.nan), "weightless": ("weight", 0.0)}
#: How long a rank waits for what must have happened before its fault.
PATIENCE_S = 30.0
#: How long a rank whose launcher is gone, or whose save was interrupted, stands still for its end.
STILL_S = 60.0


@dataclass(frozen=True)
class Fault:
    """What goes wrong, where and when.

    Attributes:
        kind: kill, kill-mpirun, kill-launch, raise, freeze, sigterm, slow, non-finite or weightless.
        rank: The rank that does it; of a weightless batch, every rank does.
        point: start, before or after (the reduction of ``step``), save (in the middle of it), epoch (after it, before
            its evaluation) or evaluation (in the middle of it). A slow rank is slow in every step.
        step: The update that it happens in, or after.
        mark: File that gets the time of the fault.
    """

    kind: str
    rank: int
    point: str
    step: int
    mark: str

    def env(self) -> dict[str, str]:
        """Return what a launch must add to its environment."""
        return {ENV: json.dumps(asdict(self))}

    @property
    def time(self) -> float | None:
        """When it happened, in seconds since 1970; ``None`` when it has not."""
        text = Path(self.mark).read_text() if Path(self.mark).exists() else ""
        return float(text) if text else None

    def at(self, **changes: Any) -> Fault:
        """Return the fault with other attributes."""
        return replace(self, **changes)


def install() -> None:
    """Arm every trainer of this process with the fault that the environment names when it begins to fit."""
    if getattr(Trainer.fit, "is_armed", False):
        return
    fit = Trainer.fit

    def armed_fit(trainer: Trainer, *data: Any) -> Any:
        if ENV in os.environ:
            arm(trainer, Fault(**json.loads(os.environ[ENV])))
        return fit(trainer, *data)

    armed_fit.is_armed = True  # type: ignore[attr-defined]
    Trainer.fit = armed_fit  # type: ignore[method-assign]


def arm(trainer: Any, fault: Fault) -> None:
    """Wrap the hooks of this one trainer so that the fault happens."""
    rank = launched_as()[0]
    if fault.kind in BATCHES:
        if rank == fault.rank or fault.kind == "weightless":
            _spoil_batches(trainer, fault)
    elif fault.point == "save":
        _arm_save(trainer, fault, rank)
    elif rank == fault.rank:
        _POINTS[fault.point](trainer, fault, lambda: _strike(trainer, fault))


# ---------------------------------------------------------------- where
def _at_start(trainer: Any, fault: Fault, strike: Callable[[], None]) -> None:
    broadcast_state = trainer.broadcast_state

    def then() -> None:
        broadcast_state()
        strike()

    trainer.broadcast_state = then


def _in_step(trainer: Any, fault: Fault, strike: Callable[[], None]) -> None:
    train_step = trainer.train_step

    def step(*args: Any, **kwargs: Any) -> Any:
        is_here = trainer.counters.global_step == fault.step - 1 or fault.kind == "slow"
        if is_here and fault.point == "before":
            strike()
        result = train_step(*args, **kwargs)
        if is_here and fault.point == "after":
            strike()
        return result

    trainer.train_step = step


def _after_epoch(trainer: Any, fault: Fault, strike: Callable[[], None]) -> None:
    class AtEpochEnd(Callback):
        def on_epoch_end(self, trainer: Any, epoch: int) -> None:
            if trainer.counters.global_step == fault.step:
                strike()

    trainer.user_callbacks = (*trainer.user_callbacks, AtEpochEnd())


def _in_evaluation(trainer: Any, fault: Fault, strike: Callable[[], None]) -> None:
    eval_step, done = trainer.eval_step, []

    def step(batch: Any) -> Any:
        if trainer.counters.global_step == fault.step:
            done.append(batch)
            if len(done) == 2:  # the first batch is done, the last one is not
                strike()
        return eval_step(batch)

    trainer.eval_step = step


_POINTS = {
    "start": _at_start,
    "before": _in_step,
    "after": _in_step,
    "epoch": _after_epoch,
    "evaluation": _in_evaluation,
}


def _arm_save(trainer: Any, fault: Fault, rank: int) -> None:
    """Let the root stop in the middle of a save; there it strikes, or waits for the rank that does."""
    inside = Path(fault.mark + ".inside")
    if rank == 0:

        def interrupt() -> None:
            inside.touch()
            if fault.rank == 0:
                _strike(trainer, fault)
            time.sleep(STILL_S)

        _interrupt_save(trainer, fault.step, interrupt)
    elif rank == fault.rank:

        def strike() -> None:
            _wait_for(inside.exists, f"the root to be in the middle of the save of step {fault.step}")
            _strike(trainer, fault)

        _in_step(trainer, fault.at(step=fault.step + 1, point="before"), strike)


def _interrupt_save(trainer: Any, step: int, interrupt: Callable[[], None]) -> None:
    """Call ``interrupt`` once bytes of a checkpoint lie on disk under a name that is not its own yet.

    What commits a checkpoint cannot do without one of these calls, however it is written.
    """

    def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
        def guard(*args: Any, **kwargs: Any) -> Any:
            written = unfinished_files(trainer.run_dir / "checkpoints", step)
            if any(file.stat().st_size for file in written):
                tear(written)
                interrupt()
            return call(*args, **kwargs)

        return guard

    for name in ("fsync", "rename", "replace"):
        setattr(os, name, guarded(getattr(os, name)))


def unfinished_files(checkpoints: Path, step: int) -> list[Path]:
    """Return what is written of the checkpoint of a step and not committed."""
    return [file for folder in checkpoints.glob(f"step-{step:08d}.tmp-*") for file in folder.iterdir()]


def tear(files: list[Path]) -> None:
    """Cut the largest file to half, as when the disk had not got the rest yet."""
    largest = max(files, key=lambda file: file.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


# ---------------------------------------------------------------- what
def _strike(trainer: Any, fault: Fault) -> None:
    """Let the fault happen, once; only a slow rank is slow again."""
    _wait_for_last_checkpoint(trainer, fault)
    if fault.time is None or fault.kind == "slow":
        Path(fault.mark).write_text(repr(time.time()))
        _KINDS[fault.kind]()


def _wait_for_last_checkpoint(trainer: Any, fault: Fault) -> None:
    """Let the thread that writes finish the checkpoint before this step, so that it is known which one is left."""
    every = trainer.config.save_every_steps
    due = (fault.step - 1) // every * every
    path = trainer.run_dir / "checkpoints" / f"step-{due:08d}"
    if due > 0:
        _wait_for(path.is_dir, f"{path} to be committed")


def _wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"fault kit: waited {PATIENCE_S:g} s for {what}.")
        time.sleep(0.01)


def _kill_launcher(is_it: Callable[[psutil.Process], bool]) -> None:
    next(filter(is_it, psutil.Process().parents())).kill()
    time.sleep(STILL_S)  # a rank that goes on could be done before it feels anything


def _fail() -> None:
    raise LookupError("a fault of the test")


_KINDS: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "kill-mpirun": lambda: _kill_launcher(lambda process: process.name() == "mpirun"),
    "kill-launch": lambda: _kill_launcher(lambda process: "launch" in process.cmdline()),
    "raise": _fail,
    "freeze": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "sigterm": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "slow": lambda: time.sleep(0.2),
}


# ---------------------------------------------------------------- bad batches
def _spoil_batches(trainer: Any, fault: Fault) -> None:
    """Overwrite one array of the batches of a step, which may not be an epoch's first: evaluations stand there."""
    make_batch = trainer.make_batch
    name, value = BATCHES[fault.kind]

    def make(micro_batch: Any) -> Any:
        if trainer.counters.global_step == fault.step - 1:
            data = micro_batch.data
            micro_batch = replace(micro_batch, data={**data, name: np.full_like(data[name], value)})
        return make_batch(micro_batch)

    trainer.make_batch = make
