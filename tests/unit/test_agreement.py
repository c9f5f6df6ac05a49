from __future__ import annotations

import pytest

from hvdtrain.agreement import agree_on_run, check_available, check_best, check_evaluation
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


def test_check_available_refuses_a_precision_that_would_be_ignored():
    with pytest.raises(ConfigError) as caught:
        check_available(TrainConfig(precision="bf16"))
    assert str(caught.value) == "plan: precision must be 'fp32' in this version, got 'bf16'. Leave it out."
