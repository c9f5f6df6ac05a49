from __future__ import annotations

import json
import math

import pytest

from hvdtrain.config import TrainConfig
from hvdtrain.errors import ConfigError
from hvdtrain.plan import make_plan
from hvdtrain.schedule import Patience, build_schedule, scaled_learning_rate


def rates_of(num_samples, *, size=1, **settings):
    """Return the rate of every update of the run, and the one after the last."""
    config = TrainConfig(**{"global_batch_size": 4, "learning_rate": 1.0, **settings})
    plan = make_plan(config, num_samples=num_samples, size=size)
    schedule = build_schedule(config, plan)
    return [schedule(4 * step) for step in range(plan.total_steps + 1)]


def approx(values):
    return pytest.approx(values, rel=1e-12, abs=1e-15)


# ---------------------------------------------------------------- courses
@pytest.mark.parametrize("decay", ["constant", "plateau"])
def test_rate_of_a_constant_course_stays(decay):
    assert rates_of(8, decay=decay, epochs=2) == [1.0] * 5


@pytest.mark.parametrize("size", [1, 2, 3])
def test_linear_decay_is_half_after_5_and_zero_after_10_of_10_steps(size):
    rates = rates_of(40, size=size, decay="linear")
    assert rates == approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0])


@pytest.mark.parametrize("passes", [2, 4])
def test_linear_decay_with_accumulation_counts_updates(passes):
    rates = rates_of(40, decay="linear", backward_passes_per_step=passes)
    assert (rates[0], rates[5], rates[10]) == approx((1.0, 0.5, 0.0))


def test_linear_decay_to_a_final_rate_ends_there():
    assert rates_of(16, decay="linear", final_learning_rate=0.2) == approx([1.0, 0.8, 0.6, 0.4, 0.2])


def test_linear_decay_stays_at_the_final_rate_after_decay_epochs():
    rates = rates_of(8, epochs=3, decay="linear", decay_epochs=2, final_learning_rate=0.5)
    assert rates == approx([1.0, 0.875, 0.75, 0.625, 0.5, 0.5, 0.5])


def test_linear_decay_ends_with_max_steps():
    assert rates_of(40, decay="linear", max_steps=4) == approx([1.0, 0.75, 0.5, 0.25, 0.0])


def test_linear_decay_of_a_short_last_batch_counts_its_samples():
    config = TrainConfig(global_batch_size=4, learning_rate=1.0, decay="linear")
    schedule = build_schedule(config, make_plan(config, num_samples=10, size=1))
    assert [schedule(seen) for seen in (0, 4, 8, 10)] == approx([1.0, 0.6, 0.2, 0.0])


def test_cosine_decay_follows_half_a_cosine():
    half = math.sqrt(0.5)
    expected = [1.0, (1 + half) / 2, 0.5, (1 - half) / 2, 0.0]
    assert rates_of(16, decay="cosine") == approx(expected)


def test_cosine_decay_to_a_final_rate_ends_there():
    rates = rates_of(16, decay="cosine", final_learning_rate=0.2)
    assert (rates[0], rates[2], rates[4]) == approx((1.0, 0.6, 0.2))


def test_step_decay_drops_every_decay_epochs():
    rates = rates_of(8, epochs=6, decay="step", decay_epochs=2, decay_factor=0.5)
    assert rates == approx([1.0] * 4 + [0.5] * 4 + [0.25] * 4 + [0.125])


def test_step_decay_drops_in_the_middle_of_an_epoch():
    assert rates_of(8, epochs=2, decay="step", decay_epochs=0.5) == approx([1.0, 0.1, 0.01, 0.001, 0.0001])


# ---------------------------------------------------------------- warm-up
def test_warmup_rises_from_the_first_update_to_the_full_rate():
    assert rates_of(16, epochs=2, warmup_epochs=1) == approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])


def test_warmup_with_linear_decay_falls_from_its_end():
    rates = rates_of(16, epochs=2, warmup_epochs=0.5, decay="linear")
    assert rates == approx([0.5, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0.0])


def test_warmup_with_cosine_decay_falls_from_its_end():
    rates = rates_of(16, epochs=2, warmup_epochs=1, decay="cosine")
    assert (rates[3], rates[4], rates[6], rates[8]) == approx((1.0, 1.0, 0.5, 0.0))


def test_warmup_of_the_whole_run_leaves_the_final_rate():
    assert rates_of(16, warmup_epochs=1, decay="linear") == approx([0.25, 0.5, 0.75, 1.0, 0.0])


def test_run_of_no_steps_has_a_finite_rate():
    assert rates_of(16, max_steps=0, decay="cosine", final_learning_rate=0.1) == approx([0.1])


# ---------------------------------------------------------------- scaling
@pytest.mark.parametrize(
    ("scaling", "batch", "expected"),
    [("none", 512, 0.1), ("linear", 512, 0.2), ("linear", 128, 0.05), ("sqrt", 1024, 0.2), ("linear", 256, 0.1)],
)
def test_scaled_rate_follows_global_batch_over_base(scaling, batch, expected):
    config = TrainConfig(learning_rate=0.1, lr_scaling=scaling, base_batch_size=256)
    assert scaled_learning_rate(config, batch) == approx(expected)


def test_scaling_acts_on_the_whole_course_and_not_on_the_final_rate():
    rates = rates_of(
        16, learning_rate=0.1, lr_scaling="linear", base_batch_size=2, decay="linear", final_learning_rate=0.1
    )
    assert rates == approx([0.2, 0.175, 0.15, 0.125, 0.1])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_scaled_rate_of_a_given_global_batch_ignores_the_ranks(size):
    assert rates_of(8, size=size, learning_rate=0.1, lr_scaling="linear", base_batch_size=2)[0] == approx(0.2)


# ---------------------------------------------------------------- streams
@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"warmup_epochs": 1.0}, "warmup_epochs"),
        ({"decay": "step", "decay_epochs": 1.0}, "decay_epochs"),
        ({"decay": "linear", "decay_epochs": 1.0}, "decay_epochs"),
    ],
)
def test_epochs_of_a_stream_without_length_raise(settings, name):
    with pytest.raises(ConfigError) as caught:
        rates_of(None, **settings)
    assert str(caught.value) == (
        f"plan: {name} needs the length of an epoch, got a stream without one. Set steps_per_epoch."
    )


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_decay_of_a_stream_without_end_raises(decay):
    with pytest.raises(ConfigError) as caught:
        rates_of(None, decay=decay)
    assert str(caught.value) == (
        f"plan: decay={decay!r} needs the length of the run, got a stream without one. "
        "Set max_steps or steps_per_epoch with epochs, or decay_epochs."
    )


@pytest.mark.parametrize("settings", [{"steps_per_epoch": 2, "epochs": 2}, {"max_steps": 4}])
def test_linear_decay_of_a_stream_with_a_length_reaches_zero(settings):
    assert rates_of(None, decay="linear", **settings) == approx([1.0, 0.75, 0.5, 0.25, 0.0])


# ---------------------------------------------------------------- patience
def test_patience_lowers_the_factor_after_more_than_plateau_patience_evaluations():
    patience = Patience(plateau_patience=1, decay_factor=0.5)
    factors = []
    for value in (3.0, 3.0, 3.0, 3.0, 3.0, 2.0, 2.0, 2.0):
        assert patience.update(value) is False
        factors.append(patience.factor)
    assert factors == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125]


def test_patience_of_zero_lowers_at_the_first_evaluation_without_gain():
    patience = Patience(plateau_patience=0, decay_factor=0.5)
    assert [patience.update(1.0), patience.factor, patience.update(1.0), patience.factor] == [False, 1.0, False, 0.5]


def test_patience_ends_the_run_after_early_stop_patience_evaluations_without_gain():
    patience = Patience(early_stop_patience=2)
    assert [patience.update(value) for value in (3.0, 2.0, 2.5, 1.0, 1.5, 1.0)] == [False] * 5 + [True]


def test_patience_takes_the_global_value():
    # Local losses 1 -> 2 and 2 -> 0.5 mean 1.5 -> 1.25 over both ranks: a gain.
    patience = Patience(plateau_patience=0, decay_factor=0.5, early_stop_patience=1)
    assert [patience.update(1.5), patience.update(1.25), patience.factor] == [False, False, 1.0]


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_patience_counts_no_value_as_no_gain(value):
    patience = Patience(early_stop_patience=1)
    assert [patience.update(1.0), patience.update(value)] == [False, True]


def test_patience_without_settings_never_acts():
    patience = Patience.of(TrainConfig(plateau_patience=0))
    assert [patience.update(1.0) for _ in range(50)] == [False] * 50
    assert patience.factor == 1.0


def test_patience_of_a_config_takes_its_numbers():
    config = TrainConfig(decay="plateau", plateau_patience=4, decay_factor=0.3, early_stop_patience=7)
    assert Patience.of(config) == Patience(plateau_patience=4, decay_factor=0.3, early_stop_patience=7)


def test_patience_restored_goes_on_and_keeps_its_own_settings():
    first = Patience(plateau_patience=0, decay_factor=0.5, early_stop_patience=2)
    for value in (1.0, 2.0):
        first.update(value)
    state = first.state()
    assert state == {"factor": 0.5, "best": 1.0, "since_best": 1, "since_drop": 0}
    second = Patience(plateau_patience=3, decay_factor=0.1, early_stop_patience=5)
    second.restore(json.loads(json.dumps(state)))
    assert second == Patience(3, 0.1, 5, factor=0.5, best=1.0, since_best=1, since_drop=0)


def test_patience_before_the_first_evaluation_is_kept_without_an_infinity():
    state = Patience().state()
    assert json.loads(json.dumps(state, allow_nan=False))["best"] is None
    restored = Patience(best=7.0)
    restored.restore(state)
    assert restored.best == math.inf
