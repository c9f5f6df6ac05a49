from __future__ import annotations

import pytest

from hvdtrain.agreement import agree_on_run, check_best, check_evaluation, check_noise_scale
from hvdtrain.communicator import connect
from hvdtrain.config import TrainConfig
from hvdtrain.errors import ConfigError
from hvdtrain.plan import make_plan


def plan_of(config, num_eval_samples=None):
    return make_plan(config, num_samples=8, num_eval_samples=num_eval_samples, size=1)


DECIDES = [
    ({"early_stop_patience": 2}, "early_stop_patience"),
    ({"keep_best": "loss"}, "keep_best"),
    ({"decay": "plateau"}, "decay='plateau'"),
]


@pytest.mark.parametrize(("settings", "name"), DECIDES)
def test_setting_that_decides_by_an_evaluation_without_one_raises(settings, name):
    config = TrainConfig(global_batch_size=4, **settings)
    with pytest.raises(ConfigError) as caught:
        check_evaluation(config, plan_of(config))
    assert str(caught.value) == f"plan: {name} needs evaluations, got no eval_data. Give the job eval_data()."


@pytest.mark.parametrize(("settings", "name"), DECIDES)
def test_setting_that_decides_by_an_evaluation_with_one_passes(settings, name):
    config = TrainConfig(global_batch_size=4, **settings)
    check_evaluation(config, plan_of(config, num_eval_samples=3))


@pytest.mark.parametrize(
    ("num_ranks", "batch", "told"),
    [(1, 4, "1 rank with a global batch of 4 samples"), (2, 1, "2 ranks with a global batch of 1 sample")],
)
def test_noise_scale_without_two_shares_is_refused(num_ranks, batch, told):
    config = TrainConfig(global_batch_size=batch, noise_scale=True)
    with pytest.raises(ConfigError) as caught:
        check_noise_scale(config, plan_of(config), num_ranks)
    assert str(caught.value) == (
        f"plan: noise_scale compares the gradients of at least 2 ranks, got {told}. Start with -np 2, or leave it out."
    )
    check_noise_scale(config.replace(noise_scale=False), plan_of(config), num_ranks)


def test_noise_scale_of_two_shares_passes():
    config = TrainConfig(global_batch_size=2, noise_scale=True)
    check_noise_scale(config, plan_of(config), 2)


def test_other_settings_need_no_evaluation():
    config = TrainConfig(global_batch_size=4, decay="linear", plateau_patience=1)
    check_evaluation(config, plan_of(config))


def test_one_rank_agrees_with_itself(monkeypatch):
    monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", "1")  # set by connect, which lasts longer than this test
    config = TrainConfig(global_batch_size=4)
    assert agree_on_run(connect(), "torch", config, plan_of(config), "digest") is None


def test_check_best_with_an_unknown_metric_raises_with_the_known_ones():
    with pytest.raises(ConfigError) as caught:
        check_best(TrainConfig(keep_best="acuracy"), ("loss", "accuracy"))
    assert str(caught.value) == (
        "plan: keep_best must be one of loss, accuracy, got 'acuracy'. Name a metric of the job."
    )
