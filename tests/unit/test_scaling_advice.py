from __future__ import annotations

import math
import re

import pytest

from hvdtrain.config import TrainConfig
from hvdtrain.errors import ConfigError
from hvdtrain.scaling_advice import scaling_advice
from hvdtrain.schedule import scaled_learning_rate


def rows_of(base, new, **settings):
    """Return the rows by rule."""
    rows = scaling_advice(TrainConfig(**settings), base, new)
    found = {row.rule: row for row in rows}
    assert len(found) == len(rows)
    return found


def test_sgd_without_momentum_has_the_plain_rules():
    rows = rows_of(64, 256, learning_rate=0.1)
    assert list(rows) == ["none", "linear", "sqrt"]
    assert [row.learning_rate for row in rows.values()] == pytest.approx([0.1, 0.4, 0.2])
    assert {(row.momentum, row.betas, row.epsilon) for row in rows.values()} == {(0.0, None, None)}


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "lamb"])
@pytest.mark.parametrize("rule", ["none", "linear", "sqrt"])
@pytest.mark.parametrize("new", [16, 64, 1000])
def test_plain_rules_give_the_rate_that_training_has(optimizer, rule, new):
    config = TrainConfig(optimizer=optimizer, learning_rate=0.3, lr_scaling=rule, base_batch_size=64)
    row = next(row for row in scaling_advice(config, 64, new) if row.lr_scaling == rule)
    assert (row.rule, row.learning_rate) == (rule, pytest.approx(scaled_learning_rate(config, new)))


def test_momentum_to_the_power_k_forgets_after_as_many_samples():
    row = rows_of(64, 256, learning_rate=0.1, momentum=0.9)["linear, momentum^k"]
    assert row.momentum == pytest.approx(0.6561)
    half_life = [math.log(0.5) / math.log(m) * batch for m, batch in ((0.9, 64), (row.momentum, 256))]
    assert half_life[0] == pytest.approx(half_life[1])
    assert row.learning_rate == pytest.approx(4 * 0.1 * (1 - 0.6561) / 0.1)


def test_momentum_rule_moves_the_weights_as_far_per_sample():
    # A steady gradient of 1 per sample: after k small updates and one large one, both at rest.
    row = rows_of(8, 24, learning_rate=0.1, momentum=0.5)["linear, momentum^k"]
    assert row.learning_rate / (1 - row.momentum) == pytest.approx(3 * 0.1 / (1 - 0.5))


def test_adam_by_the_square_root_rule():
    row = rows_of(64, 256, optimizer="adamw", learning_rate=0.001, betas=(0.9, 0.99), epsilon=1e-8)["sqrt, betas"]
    assert row.learning_rate == pytest.approx(0.002)
    assert row.betas == pytest.approx((0.6, 0.96))
    assert row.epsilon == pytest.approx(5e-9)
    assert row.momentum is None
    assert "2205.10287" in row.source
    plain = rows_of(64, 256, optimizer="adamw", learning_rate=0.001, betas=(0.9, 0.99))["sqrt"]
    assert (plain.betas, plain.epsilon) == ((0.9, 0.99), 1e-8)


@pytest.mark.parametrize(("new", "is_possible"), [(640, True), (641, False)])
def test_adam_beyond_the_reach_of_the_rule_has_no_betas(new, is_possible):
    row = rows_of(64, new, optimizer="adam", betas=(0.9, 0.999))["sqrt, betas"]
    assert (row.betas is not None) is is_possible
    if not is_possible:
        assert row.note == "No betas: they would fall below 0 above a global batch of 640."


def test_settings_of_the_row_are_settings_of_a_run():
    row = rows_of(64, 128, optimizer="adam")["sqrt, betas"]
    TrainConfig(optimizer="adam", betas=row.betas, epsilon=row.epsilon, learning_rate=row.learning_rate)
    row = rows_of(64, 128, momentum=0.9)["linear, momentum^k"]
    TrainConfig(momentum=row.momentum, learning_rate=row.learning_rate)


@pytest.mark.parametrize(
    ("new", "warmup_epochs", "expected", "is_missing"),
    [
        (128, 0.0, 5.0, True),
        (128, 5.0, 5.0, False),
        (128, 8.0, 8.0, False),
        (64, 0.0, 0.0, False),
        (32, 1.0, 1.0, False),
    ],
)
def test_linear_scaling_up_wants_five_epochs_of_warmup(new, warmup_epochs, expected, is_missing):
    rows = rows_of(64, new, momentum=0.9, warmup_epochs=warmup_epochs)
    for rule in ("linear", "linear, momentum^k"):
        assert (rows[rule].warmup_epochs, rows[rule].is_warmup_missing) == (expected, is_missing)
    assert not rows["none"].is_warmup_missing
    assert not rows["sqrt"].is_warmup_missing


def test_warmup_of_lamb_grows_with_the_batch():
    row = rows_of(64, 256, optimizer="lamb", warmup_epochs=0.5)["sqrt"]
    assert (row.warmup_epochs, row.is_warmup_missing) == (2.0, True)
    assert "1901.08256" in row.source


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimizer": "adamw"}, {"optimizer": "lamb"}])
def test_same_batch_changes_nothing(settings):
    config = TrainConfig(**settings)
    for row in scaling_advice(config, 64, 64):
        assert row.learning_rate == pytest.approx(config.learning_rate)
        assert row.momentum in (None, pytest.approx(config.momentum))
        assert row.betas is None or row.betas == pytest.approx(config.betas)
        assert row.epsilon in (None, pytest.approx(config.epsilon))


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimizer": "adam"}, {"optimizer": "lamb"}])
def test_every_rule_names_its_source_and_fits_a_table(settings):
    rows = rows_of(64, 4096, **settings)
    assert all(re.search(r"arXiv:\d{4}\.\d{4,5}", row.source) for row in rows.values() if row.rule != "none")
    assert max(len(rule) for rule in rows) <= 24
    assert max(len(row.note) for row in rows.values()) <= 72


@pytest.mark.parametrize(("base", "new"), [(0, 64), (64, 0), (-1, 64)])
def test_batch_below_one_is_refused(base, new):
    with pytest.raises(ConfigError) as caught:
        scaling_advice(TrainConfig(), base, new)
    assert str(caught.value) == (
        f"scaling advice: both batches must be at least 1, got {base} and {new}. Give the global batch of the "
        "settings, and the new one."
    )
