"""Arithmetic of the forward pass and gradients on the wire, on four real ranks in each framework."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from hvdtrain.errors import NonFiniteError
from tests.parallel.fitting import Fitter

#: Half of the distance of two neighbours, relative: eight bits and eleven.
BF16, FP16 = 2.0**-8, 2.0**-11

ROWS = [{"x": np.array([0.3, -1.1, 0.7]) * (row + 1)} for row in range(10)]


@pytest.fixture
def toy(adapter, communicator):
    return Fitter(importlib.import_module(f"tests.parallel.toy_{adapter}"), communicator)


@pytest.fixture
def network(toy):
    """A function that fits a network of two layers to ``ROWS``."""
    settings = {"model": lambda: toy.toy.random_model(4), "loss": squares, "global_batch_size": 6, "epochs": 2}
    return lambda **changes: toy.fit(ROWS, **{**settings, **changes})


def squares(model, batch):
    return model(batch["x"])[:, 0] ** 2


def outputs(model, batch):
    return {"output": model(batch["x"])[:, 0]}


def moved(run, other):
    """Return the largest distance of two runs' weights, relative to how far the tensor could move."""
    return max(np.abs(run.weights[n] - other.weights[n]).max() / np.abs(other.weights[n]).max() for n in other.weights)


def is_bfloat16(value):
    return int(np.float32(value).view(np.uint32)) & 0xFFFF == 0


# ---------------------------------------------------------------- bf16


def test_bf16_trains_float32_weights_to_those_of_fp32_within_its_rounding(network):
    full, half = network(rule="adamw"), network(rule="adamw", precision="bf16")
    assert {a.dtype.name for a in half.weights.values()} == {"float32"}
    assert {a.dtype.name for name, a in half.slots.items() if not name.endswith("/step")} == {"float32"}
    assert 0 < moved(half, full) < 4 * BF16


@pytest.mark.parametrize(("precision", "expected"), [("bf16", True), ("fp32", False)])
def test_evaluation_computes_in_the_precision_of_training(network, precision, expected):
    arguments = {"max_steps": 1, "learning_rate": 0.0, "loss": lambda model, batch: model(batch["x"])[:, 0]}
    one = network(**arguments, global_batch_size=1, eval_samples=ROWS[:1], metrics=outputs, precision=precision)
    # One sample, so each mean is what the last layer gave; a metric of float32 has all its bits but by chance.
    found = [one.summary["train"]["loss"], *one.summary["eval"].values()]
    assert [is_bfloat16(value) for value in found] == [expected] * 3


def test_weights_are_applied_in_float32(network):
    def weighted(model, batch):
        values = model(batch["x"])[:, 0]
        return values, 0 * batch["x"][:, 0] + 0.1

    arguments = {"max_steps": 1, "learning_rate": 0.0, "global_batch_size": 1, "precision": "bf16"}
    plain = network(**arguments, loss=lambda model, batch: model(batch["x"])[:, 0])
    # The mean of one sample does not depend on its weight; in bfloat16, 0.1 times a value has another last bit.
    expected = pytest.approx(plain.summary["train"]["loss"], rel=1e-6)
    assert network(**arguments, loss=weighted).summary["train"]["loss"] == expected


# ---------------------------------------------------------------- fp16 on the wire


def test_sum_that_leaves_float16_is_right_after_normalisation(toy):
    # 4 x 40000 is 160000, and float16 ends at 65504.
    run = toy.fit([40000.0] * 4, global_batch_size=4, max_steps=1, compression="fp16")
    assert run.w == pytest.approx(-4000.0, rel=FP16)


@pytest.mark.parametrize("size", [1e15, 3e5, 1e-9, 1e-30])
def test_gradient_beyond_the_range_of_float16_is_reduced_to_its_rounding(toy, size):
    run = toy.fit([size * part for part in (1, 3, 5, 9)], global_batch_size=4, max_steps=1, compression="fp16")
    assert run.w == pytest.approx(-0.1 * 4.5 * size, rel=4 * FP16)


def test_compressed_update_equals_the_uncompressed_one_to_the_rounding_of_float16(network):
    plain = network(max_steps=1, batch_size=1)
    compressed = network(max_steps=1, batch_size=1, compression="fp16")
    assert 0 < moved(compressed, plain) < 4 * FP16


def test_compressed_gradients_of_ranks_with_empty_shares_are_reduced(toy):
    assert toy.fit([3.0, 5.0], global_batch_size=8, epochs=2, compression="fp16").w == pytest.approx(-0.8, rel=FP16)


@pytest.mark.parametrize("batch_size", [2, 1])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_compressed_gradient_that_is_not_finite_is_seen_on_all_ranks(toy, value, batch_size):
    samples = [*[1.0] * 4, value, *[1.0] * 3, *[2.0] * 8]
    arguments = {"global_batch_size": 8, "batch_size": batch_size, "compression": "fp16"}
    with pytest.raises(NonFiniteError, match=r"It comes from rank 2 \(samples 4\)"):
        toy.fit(samples, **arguments)
    assert toy.fit(samples, on_nonfinite="skip", **arguments).w == pytest.approx(-0.2, rel=FP16)
