"""What the tests of resume share: the same run undisturbed, killed, and continued."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from hvdtrain.checkpoint import load
from hvdtrain.resume import ResumeRequest
from hvdtrain.stream import Stream
from tests.unit.numpy_trainer import AtStep, make_samples, rows_of, trainer_of

RESUME = ResumeRequest(is_wanted=True)
#: Differ from run to run.
CLOCK = ("time_s", "samples_per_s", "session", "split", "ranks")


class Killed(Exception):
    """Ends a run at once, without its final checkpoint, as a kill does."""


def kill(trainer):
    # So that every test knows which checkpoint is the newest.
    trainer._saver.wait()
    raise Killed


def resumed(callbacks=(), *, request=RESUME, **settings):
    """Return a new trainer that continues the run of ``run_dir``."""
    return trainer_of(callbacks, resume=request, **settings)


def kill_at(step, train_data, eval_data=None, *, hook="on_step_end", **settings):
    """Run and end at once in ``hook`` of ``step``."""
    try:
        trainer_of([AtStep(kill, step, hook)], **settings).fit(train_data, eval_data)
    except Killed:
        return
    raise AssertionError(f"there was no {hook} of step {step}")


def stream_of(data, num_shards):
    return Stream(lambda shard, of: (data[index] for index in range(shard, len(data), of)), num_shards)


def rows_without_clock(folder, event=None):
    return [{name: value for name, value in row.items() if name not in CLOCK} for row in rows_of(folder, event)]


def without_clock(summary):
    return {name: value for name, value in summary.items() if name not in CLOCK}


def tensors_of(path):
    """Return the exact bits of all weights and slots of a checkpoint."""
    state = load(Path(path)).state
    return {name: (array.dtype.str, array.tobytes()) for name, array in {**state.weights, **state.slots}.items()}


def newest(folder):
    return sorted((Path(folder) / "checkpoints").iterdir())[-1]


def outcome(folder, summary):
    """Return all that a run must have in common with the undisturbed one."""
    return {
        "tensors": tensors_of(newest(folder)),
        "rows": rows_without_clock(folder),
        "summary": without_clock(summary),
        "file": without_clock(json.loads((Path(folder) / "summary.json").read_text())),
    }


def noisy_samples(num_samples, seed=0):
    """Return samples whose sums round, so that another order of addition shows."""
    data, generator = make_samples(num_samples), np.random.default_rng(seed)
    data.columns["x"] = generator.normal(size=(num_samples, 2)).astype(np.float32)
    data.columns["y"] = generator.normal(size=num_samples).astype(np.float32)
    return data
