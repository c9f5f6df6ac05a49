from __future__ import annotations

import math

import pytest

from hvdtrain.config import TrainConfig
from hvdtrain.errors import ConfigError


def message_of(**settings):
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**settings)
    return str(caught.value)


WITHOUT_DEFAULT = (
    *("epochs", "max_steps", "max_time_s", "steps_per_epoch", "global_batch_size", "batch_size"),
    *("backward_passes_per_step", "clip_norm", "decay_epochs", "base_batch_size", "save_every_steps"),
    *("save_every_epochs", "save_every_minutes", "keep_last", "keep_best", "early_stop_patience"),
    "check_replicas_every_steps",
)


def test_config_without_settings_has_the_documented_defaults():
    expected = {
        **dict.fromkeys(WITHOUT_DEFAULT),
        **{"optimizer": "sgd", "learning_rate": 0.01, "weight_decay": 0.0, "momentum": 0.0, "nesterov": False},
        **{"betas": (0.9, 0.999), "epsilon": 1e-8, "warmup_epochs": 0.0, "decay": "constant", "decay_factor": 0.1},
        **{"final_learning_rate": 0.0, "plateau_patience": 2, "lr_scaling": "none", "precision": "fp32"},
        **{"compression": "none", "compile": False, "seed": 0, "shuffle": True, "data_workers": 0},
        **{"noise_scale": False, "log_every_steps": 10, "eval_every_epochs": 1, "stall_timeout_s": 600.0},
        **{"on_nonfinite": "raise"},
    }
    assert TrainConfig().model_dump() == expected


ONE_PROBLEM = [
    ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ({"max_steps": -1}, "max_steps must be at least 0, got -1"),
    ({"max_time_s": 0}, "max_time_s must be greater than 0.0, got 0"),
    ({"clip_norm": -1.0}, "clip_norm must be greater than 0.0, got -1.0"),
    ({"momentum": 1.0}, "momentum must be less than 1.0, got 1.0"),
    ({"decay_factor": 1.5}, "decay_factor must be at most 1.0, got 1.5"),
    ({"learning_rate": math.inf}, "learning_rate must be finite, got inf"),
    ({"optimizer": "rmsprop"}, "optimizer must be one of 'sgd', 'adam', 'adamw' or 'lamb', got 'rmsprop'"),
    ({"on_nonfinite": "ignore"}, "on_nonfinite must be one of 'raise' or 'skip', got 'ignore'"),
    ({"betas": (0.9, 1.0)}, "betas.1 must be less than 1.0, got 1.0"),
    (
        {"epochs": "three"},
        "epochs must be a valid integer, unable to parse string as an integer, got 'three'",
    ),
    ({"epochs": 1.5}, "epochs must be a valid integer, got a number with a fractional part, got 1.5"),
    ({"learnig_rate": 0.1}, "unknown setting 'learnig_rate', got 0.1. Did you mean 'learning_rate'"),
    ({"zzz": 1}, "unknown setting 'zzz', got 1"),
    ({"nesterov": True}, "nesterov needs a momentum above 0, got momentum=0.0"),
    ({"lr_scaling": "linear"}, "lr_scaling='linear' needs base_batch_size, got None"),
    ({"decay": "step"}, "decay='step' needs decay_epochs, got None"),
    (
        {"compression": "bf16"},
        "compression must be one of 'none' or 'fp16', got 'bf16'. Horovod 0.28.1 reduces no bfloat16",
    ),
    ({"compression": ["bf16"]}, "compression must be one of 'none' or 'fp16', got ['bf16']. Did you mean 'fp16'"),
]


@pytest.mark.parametrize(("settings", "problem"), ONE_PROBLEM)
def test_config_with_one_problem_names_rule_and_value(settings, problem):
    end = "?" if "Did you mean" in problem else "."
    assert message_of(**settings) == f"TrainConfig: {problem}{end}"


def test_config_names_all_problems_of_fields_at_once():
    assert message_of(epochs=3, batch_size=0, clip_norm=-1.0, zzz="adam") == (
        "TrainConfig: 3 problems:\n"
        "  batch_size must be at least 1, got 0.\n"
        "  clip_norm must be greater than 0.0, got -1.0.\n"
        "  unknown setting 'zzz', got 'adam'."
    )


def test_config_names_all_problems_of_combinations_at_once():
    assert message_of(nesterov=True, lr_scaling="sqrt", decay="step") == (
        "TrainConfig: 3 problems:\n"
        "  nesterov needs a momentum above 0, got momentum=0.0.\n"
        "  lr_scaling='sqrt' needs base_batch_size, got None.\n"
        "  decay='step' needs decay_epochs, got None."
    )


def test_config_names_problems_of_fields_and_of_combinations_together():
    message = message_of(batch_size=0, nesterov=True)
    assert "batch_size must be at least 1, got 0" in message
    assert "nesterov needs a momentum above 0, got momentum=0.0" in message


def test_config_cannot_be_changed():
    config = TrainConfig(epochs=1)
    with pytest.raises(ValueError, match="frozen"):
        config.epochs = 2
    assert config.epochs == 1


def test_replace_returns_a_checked_copy():
    config = TrainConfig(epochs=1, seed=3)
    assert config.replace(epochs=2) == TrainConfig(epochs=2, seed=3)
    assert config == TrainConfig(epochs=1, seed=3)
    with pytest.raises(ConfigError) as caught:
        config.replace(epochs=0)
    assert str(caught.value) == "TrainConfig: epochs must be at least 1, got 0."


def test_replace_of_nothing_is_the_same():
    config = TrainConfig(betas=(0.8, 0.9), nesterov=True, momentum=0.5)
    assert config.replace() == config


def test_every_field_says_what_it_is():
    assert [name for name, field in TrainConfig.model_fields.items() if not field.description] == []


def test_choice_that_is_none_is_told_with_the_nearest():
    with pytest.raises(ConfigError) as caught:
        TrainConfig(optimizer="adm")
    assert str(caught.value) == (
        "TrainConfig: optimizer must be one of 'sgd', 'adam', 'adamw' or 'lamb', got 'adm'. Did you mean 'adam'?"
    )
