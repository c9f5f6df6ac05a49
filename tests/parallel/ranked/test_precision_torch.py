"""What only PyTorch has: a precision that a loss can see, and a compiled loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hvdtrain.errors import NonFiniteError
from tests.parallel import exact_torch, toy_torch
from tests.parallel.fitting import Fitter
from tests.parallel.ranked.test_precision import BF16, ROWS, moved, squares

# PyTorch 2.13 warns of its own code as it imports its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


@pytest.fixture
def toy(adapter, communicator):
    return Fitter(toy_torch, communicator)


def noting(seen):
    """Return the loss ``squares`` that notes in what the model computes."""

    def loss(model, batch):
        output = model(batch["x"])
        seen.append(output.dtype)
        return output[:, 0] ** 2

    return loss


def test_probe_training_evaluation_and_the_search_for_what_is_not_finite_compute_in_bfloat16(toy):
    seen = []
    settings = {"model": lambda: toy_torch.random_model(4), "loss": noting(seen), "global_batch_size": 10}
    toy.fit(ROWS, eval_samples=ROWS, precision="bf16", **settings)
    with pytest.raises(NonFiniteError, match=r"It comes from rank 3 \(samples 10\)"):
        toy.fit([*ROWS, {"x": np.full(3, np.nan)}], precision="bf16", **{**settings, "global_batch_size": 11})
    assert set(seen) == {torch.bfloat16}


# ---------------------------------------------------------------- compile


def test_compiled_loss_makes_the_update_of_the_plain_one_without_compiling_for_each_size(toy):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    settings = {"model": lambda: toy_torch.random_model(4), "loss": squares, "epochs": 2, "momentum": 0.9}
    plain, compiled = (
        toy.fit(ROWS * 2, global_batch_size=13, compile=compile, **settings) for compile in (False, True)
    )
    # Shares of 4 or 3 samples, then of 2 on three ranks and 1 on the last, for which PyTorch compiles apart; and
    # what is compiled first to see that there is a compiler.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1 + (2 if toy.rank == 3 else 1)
    assert compiled.weights.keys() == plain.weights.keys()
    assert compiled.slots.keys() == plain.slots.keys()
    assert moved(compiled, plain) < 1e-6


def test_compiled_loss_makes_the_update_of_the_plain_one_with_empty_shares(toy):
    settings = {"model": lambda: toy_torch.random_model(4), "loss": squares, "global_batch_size": 7, "batch_size": 1}
    plain, compiled = (toy.fit(ROWS, compile=compile, **settings) for compile in (False, True))
    assert moved(compiled, plain) < 1e-6


@pytest.mark.parametrize("compile", [False, True])
def test_parameter_that_some_ranks_use_is_reduced_on_all(toy, compile):
    samples = [{"x": np.float32(x)} for x in (1.0, -2.0, -4.0, 3.0)]
    run = toy.fit(samples, model=exact_torch.Either, global_batch_size=4, compile=compile)
    # Ranks 0 and 3 use u, 1 and 2 use v: means of x are 1 and -1.5 over four samples.
    assert run.weights == {"u": pytest.approx(1 - 0.1), "v": pytest.approx(1 + 0.15)}


def test_compiled_loss_leaves_alone_what_no_rank_uses(toy):
    run = toy.fit([1.0] * 4, model=exact_torch.Spare, global_batch_size=4, weight_decay=0.5, compile=True)
    assert run.w == pytest.approx(-0.1)
    assert run.weights["spare"].tolist() == [1.0, 1.0]


def test_compiled_loss_computes_in_bf16(toy):
    settings = {"model": lambda: toy_torch.random_model(4), "loss": squares, "global_batch_size": 8, "max_steps": 1}
    full, half = (toy.fit(ROWS, compile=True, precision=precision, **settings) for precision in ("fp32", "bf16"))
    assert 0 < moved(half, full) < 4 * BF16
