"""Every canonical optimizer equals its definition in NumPy, while the rate moves."""

from __future__ import annotations

import numpy as np
import pytest

from hvdtrain.config import TrainConfig
from hvdtrain.data import MicroBatch
from hvdtrain.optimizers import define
from hvdtrain.step import StepVotes

RATES = (0.1, 0.05, 0.2, 0.01, 0.3)
RULES = [
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "momentum": 0.9},
    {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.02},
    {"optimizer": "adam", "weight_decay": 0.02},
    {"optimizer": "adam", "betas": (0.8, 0.9), "epsilon": 1e-3},
    {"optimizer": "adamw", "weight_decay": 0.1, "epsilon": 1e-3},
    {"optimizer": "lamb", "weight_decay": 0.1},
    {"optimizer": "lamb", "betas": (0.5, 0.7), "epsilon": 1e-2},
]


def _linear(model, batch):
    return model(batch["x"])[:, 0]


def _step(trainer, x, lr):
    batch = trainer.make_batch(MicroBatch({"x": x}, len(x)))
    trainer.train_step([batch], lr=lr, votes=StepVotes(num_samples=len(x), num_passes=1))


@pytest.mark.parametrize("settings", RULES, ids=lambda settings: "-".join(map(str, settings.values())))
def test_optimizer_over_five_changing_rates_equals_its_definition(toy, settings):
    rng = np.random.default_rng(0)
    batches = rng.normal(size=(len(RATES), 4, 3)).astype(np.float32)
    settings = dict(settings)
    rule = settings.pop("optimizer")
    config = TrainConfig(optimizer=rule, **settings)
    arguments = {"model": lambda: toy.toy.lazy_model(1), "loss": _linear, "global_batch_size": 4, "max_steps": 0}
    run = toy.fit([{"x": batches[0][0]}], kind="HeldTrainer", rule=rule, **arguments, **settings)
    definition = define(config)
    (name,) = run.weights
    w = run.weights[name].astype(np.float64)
    slots = {slot: np.zeros_like(w) for slot in definition.slots}
    for count, (x, lr) in enumerate(zip(batches, RATES, strict=True), 1):
        _step(run.trainer, x, lr)
        w = definition.update(config, w, x.astype(np.float64).mean(0, keepdims=True), slots, lr, count)
        state = run.trainer.export_state()
        np.testing.assert_allclose(state.weights[name], w, rtol=1e-6, atol=1e-6, err_msg=f"step {count}")
    toy.toy.Trainer.stop(run.trainer)
    for slot, values in slots.items():
        np.testing.assert_allclose(state.slots[f"{name}/{slot}"], values, rtol=1e-5, atol=1e-6, err_msg=slot)


def test_definitions_of_all_settings_give_different_weights():
    """Were the settings alike, the comparison above would prove nothing."""
    seen = set()
    for settings in RULES:
        config = TrainConfig(**settings)
        definition = define(config)
        w = np.array([0.5, -1.0])
        slots = {slot: np.zeros_like(w) for slot in definition.slots}
        for count, lr in enumerate(RATES, 1):
            w = definition.update(config, w, np.array([0.3, 0.7]) * count, slots, lr, count)
        seen.add(tuple(np.round(w, 4)))
    assert len(seen) == len(RULES)
