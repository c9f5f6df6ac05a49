from __future__ import annotations

import pytest

from hvdtrain.batching import BatchSizes
from hvdtrain.config import TrainConfig
from hvdtrain.errors import ConfigError, DataError
from hvdtrain.plan import make_plan


def plan_of(num_samples, size=1, num_eval_samples=None, **settings):
    config = TrainConfig(**{"global_batch_size": 4, **settings})
    return make_plan(config, num_samples=num_samples, num_eval_samples=num_eval_samples, size=size)


# Settings -> steps_per_epoch, epochs, total_steps, total_samples of 10 samples in batches of 4: 4 + 4 + 2.
LENGTHS = [
    ({}, (3, 1, 3, 10)),
    ({"epochs": 2}, (3, 2, 6, 20)),
    ({"max_steps": 2}, (3, 1, 2, 8)),
    ({"max_steps": 3}, (3, 1, 3, 10)),
    ({"max_steps": 4}, (3, 2, 4, 14)),
    ({"max_steps": 0}, (3, 1, 0, 0)),
    ({"epochs": 2, "max_steps": 5}, (3, 2, 5, 18)),
    ({"epochs": 2, "max_steps": 100}, (3, 2, 6, 20)),
    ({"epochs": 5, "max_steps": 2}, (3, 5, 2, 8)),
]


@pytest.mark.parametrize(("settings", "expected"), LENGTHS)
def test_plan_of_ten_samples_in_batches_of_four(settings, expected):
    plan = plan_of(10, **settings)
    assert (plan.steps_per_epoch, plan.epochs, plan.total_steps, plan.total_samples) == expected
    assert plan.samples_per_epoch == 10


@pytest.mark.parametrize("size", [1, 2, 3, 16])
def test_plan_moves_nothing_but_the_shares_with_the_ranks(size):
    plan = plan_of(10, size=size, epochs=2)
    assert (plan.steps_per_epoch, plan.epochs, plan.total_steps, plan.total_samples) == (3, 2, 6, 20)
    assert plan.sizes == BatchSizes(4, {1: 4, 2: 2, 3: 2, 16: 1}[size], 1)


def test_plan_with_a_batch_above_the_data_has_one_step():
    plan = plan_of(3, global_batch_size=8, epochs=2)
    assert (plan.steps_per_epoch, plan.total_steps, plan.total_samples) == (1, 2, 6)


# Settings -> steps_per_epoch, epochs, total_steps, samples_per_epoch, total_samples of a stream in batches of 4.
STREAMS = [
    ({}, (None, 1, None, None, None)),
    ({"epochs": 3}, (None, 3, None, None, None)),
    ({"steps_per_epoch": 5}, (5, 1, 5, 20, 20)),
    ({"steps_per_epoch": 5, "epochs": 2}, (5, 2, 10, 20, 40)),
    ({"steps_per_epoch": 5, "max_steps": 12}, (5, 3, 12, 20, 48)),
    ({"steps_per_epoch": 5, "epochs": 2, "max_steps": 7}, (5, 2, 7, 20, 28)),
]


@pytest.mark.parametrize(("settings", "expected"), STREAMS)
def test_plan_of_a_stream(settings, expected):
    plan = plan_of(None, **settings)
    found = (plan.steps_per_epoch, plan.epochs, plan.total_steps, plan.samples_per_epoch, plan.total_samples)
    assert found == expected


def test_plan_of_a_stream_with_max_steps_alone_has_no_epochs():
    plan = plan_of(None, max_steps=7)
    assert (plan.steps_per_epoch, plan.epochs, plan.total_steps) == (None, None, 7)


def test_plan_with_no_samples_raises():
    with pytest.raises(DataError) as caught:
        plan_of(0)
    assert str(caught.value) == (
        "plan: train_data must hold at least 1 sample, got 0. Check the path or the filter that made it."
    )


def test_plan_with_no_evaluation_samples_raises():
    with pytest.raises(DataError) as caught:
        plan_of(5, num_eval_samples=0)
    assert str(caught.value) == (
        "plan: eval_data must hold at least 1 sample, got 0. Check the path or the filter that made it."
    )


def test_steps_per_epoch_for_data_with_a_length_raises():
    with pytest.raises(ConfigError) as caught:
        plan_of(10, steps_per_epoch=2)
    assert str(caught.value) == (
        "plan: steps_per_epoch is for data without length, got 2 for 10 samples. Use max_steps to end a run early."
    )


def test_plan_keeps_the_number_of_evaluation_samples():
    assert (plan_of(5, num_eval_samples=3).num_eval_samples, plan_of(5).num_eval_samples) == (3, None)
