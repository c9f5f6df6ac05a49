from __future__ import annotations

import logging
import math
import time
from pathlib import Path

import numpy as np
import pytest

from hvdtrain import checkpoint
from hvdtrain.errors import DataError, NonFiniteError
from hvdtrain.stream import Stream
from tests.unit.numpy_trainer import (
    TEN,
    AtStep,
    Linear,
    Samples,
    Watcher,
    close,
    make_samples,
    rows_of,
    train_linear,
    trainer_of,
    weights_of,
)

pytestmark = pytest.mark.usefixtures("after_fit")


# ---------------------------------------------------------------- where a run ends
def test_max_steps_ends_in_the_middle_of_an_epoch():
    data, trainer = make_samples(10), trainer_of(epochs=3, max_steps=4)
    summary = trainer.fit(data, make_samples(2))
    assert (summary["epoch"], summary["global_step"], summary["samples_seen"]) == (2, 4, 14)
    assert summary["ledger"]["train"] == {"once": 4, "more": 0, "never": 0}
    assert weights_of(trainer) == close(
        train_linear(data.columns["x"], data.columns["y"], [*TEN, range(0, 4)], lr=0.05)
    )


def test_max_steps_of_0_saves_and_evaluates_the_start():
    model = Linear(np.array([1.0, 2.0]), np.array([3.0]))
    summary = trainer_of(model=model, max_steps=0, run_dir="run").fit(
        make_samples(4), Samples(np.zeros((2, 2)), [3, 1])
    )
    assert (summary["epoch"], summary["global_step"], summary["samples_seen"]) == (0, 0, 0)
    assert (summary["train"], summary["eval"]) == ({"loss": None}, {"loss": 2.0})
    found = checkpoint.find_latest(Path("run/checkpoints"))
    assert found.path.name == "step-00000000"
    assert found.state.weights["weight"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("hook", "step", "last_step"), [("on_fit_begin", 0, 1), ("on_step_end", 2, 3)])
def test_request_stop_ends_the_run_after_the_next_step(hook, step, last_step):
    watcher = Watcher()
    stop = AtStep(lambda trainer: trainer.request_stop(), step, hook)
    summary = trainer_of([stop, watcher], epochs=5, run_dir="run").fit(make_samples(10), make_samples(2))
    assert summary["global_step"] == last_step
    assert watcher.seen[-3:] == [
        f"on_evaluate {last_step}",
        f"on_checkpoint step-0000000{last_step}",
        "on_fit_end",
    ]


def test_max_time_ends_the_run_after_a_step():
    nap = AtStep(lambda trainer: time.sleep(0.6))
    summary = trainer_of([nap], epochs=1000, max_time_s=0.5).fit(make_samples(4))
    assert summary["global_step"] == 2


def test_early_stop_ends_the_run_after_evaluations_without_gain():
    summary = trainer_of(epochs=9, learning_rate=0.0, early_stop_patience=2).fit(make_samples(8), make_samples(2))
    assert (summary["epoch"], summary["global_step"]) == (3, 6)


def test_early_stop_does_not_come_while_the_loss_falls():
    summary = trainer_of(epochs=4, learning_rate=0.01, early_stop_patience=1).fit(make_samples(8), make_samples(8))
    assert summary["epoch"] == 4


def test_plateau_lowers_the_rate_of_the_next_epochs():
    zeros = Samples(np.zeros((4, 2)), np.zeros(4))
    trainer = trainer_of(epochs=4, learning_rate=1.0, decay="plateau", plateau_patience=0, decay_factor=0.5)
    trainer.fit(zeros, zeros)
    assert trainer.rates == [1.0, 1.0, 0.5, 0.25]


# ---------------------------------------------------------------- streams
def stream_of(data):
    return Stream(lambda shard, num_shards: (data[index] for index in range(shard, len(data), num_shards)))


def test_stream_epoch_ends_with_the_stream():
    data, trainer, watcher = make_samples(10), trainer_of(epochs=2), Watcher()
    trainer.user_callbacks = (watcher,)
    summary = trainer.fit(stream_of(data))
    assert (summary["epoch"], summary["global_step"], summary["samples_seen"]) == (2, 6, 20)
    assert summary["ledger"] == {"train": None, "eval": None}
    assert weights_of(trainer) == close(train_linear(data.columns["x"], data.columns["y"], TEN * 2, lr=0.05))
    assert [text for text in watcher.seen if "epoch" in text] == ["on_epoch_end 1", "on_epoch_end 2"]


def test_stream_epoch_of_steps_per_epoch_goes_on_where_the_last_ended():
    data, trainer = make_samples(16), trainer_of(epochs=2, steps_per_epoch=2)
    summary = trainer.fit(stream_of(data))
    batches = [range(start, start + 4) for start in range(0, 16, 4)]
    assert (summary["epoch"], summary["global_step"]) == (2, 4)
    assert weights_of(trainer) == close(train_linear(data.columns["x"], data.columns["y"], batches, lr=0.05))


def test_stream_run_ends_with_max_steps_and_begins_anew_where_it_must():
    data, trainer = make_samples(8), trainer_of(max_steps=5)
    summary = trainer.fit(stream_of(data))
    batches = [range(0, 4), range(4, 8)] * 2 + [range(0, 4)]
    assert (summary["epoch"], summary["global_step"]) == (3, 5)
    assert weights_of(trainer) == close(train_linear(data.columns["x"], data.columns["y"], batches, lr=0.05))


def test_stream_for_evaluation_is_refused():
    with pytest.raises(DataError):
        trainer_of().fit(make_samples(4), stream_of(make_samples(4)))


# ---------------------------------------------------------------- what is not finite, what has no weight
def samples_with(row, value):
    data = make_samples(12)
    data.columns["y"][row] = value
    return data


@pytest.mark.parametrize(
    ("value", "told"), [(math.nan, "loss sum nan and gradient norm nan"), (math.inf, "loss sum inf and gradient norm ")]
)
def test_nonfinite_loss_raises_with_step_and_values(value, told):
    trainer = trainer_of(run_dir="run")
    with pytest.raises(NonFiniteError) as caught:
        trainer.fit(samples_with(5, value))
    text = str(caught.value)
    assert text.startswith(f"step 2: loss and gradient must be finite, got {told}")
    assert text.endswith(
        " It comes from rank 0 (samples 5). Mend the data, lower the learning rate, or set on_nonfinite='skip'."
    )
    assert (caught.value.is_agreed, caught.value.exit_code) == (True, 4)
    assert trainer.calls[-1] == "stop"
    assert [row["global_step"] for row in rows_of("run")] == [1]


def test_nonfinite_loss_is_skipped_as_if_the_batch_were_absent():
    data, trainer = samples_with(5, math.nan), trainer_of(on_nonfinite="skip", epochs=2)
    summary = trainer.fit(data)
    batches = [range(0, 4), range(8, 12)] * 2
    assert (summary["global_step"], summary["samples_seen"]) == (6, 24)
    assert weights_of(trainer) == close(train_linear(data.columns["x"], data.columns["y"], batches, lr=0.05))
    assert math.isfinite(summary["train"]["loss"])


def test_rows_of_a_skipped_step_are_json():
    trainer_of(on_nonfinite="skip", run_dir="run").fit(samples_with(5, math.nan))
    assert [row["loss"] is None for row in rows_of("run", "train")] == [False, True, False]


def test_batches_without_weight_warn_once_and_update_nothing(caplog):
    data = make_samples(12)
    data.columns["weight"] = np.zeros(12, dtype=np.float32)
    trainer = trainer_of(optimizer="adam")
    with caplog.at_level(logging.WARNING, "hvdtrain"):
        summary = trainer.fit(data)
    assert weights_of(trainer) == [0.0, 0.0, 0.0]
    assert (summary["global_step"], summary["samples_seen"], summary["train"]) == (3, 12, {"loss": None})
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == ["step 1: all weights are 0, nothing was updated; further ones are not reported"]


def test_batch_without_weight_leaves_the_others_alone():
    data, trainer = make_samples(12), trainer_of()
    data.columns["weight"] = np.array([1] * 4 + [0] * 4 + [1] * 4, dtype=np.float32)
    trainer.fit(data)
    batches = [range(0, 4), range(8, 12)]
    assert weights_of(trainer) == close(train_linear(data.columns["x"], data.columns["y"], batches, lr=0.05))
