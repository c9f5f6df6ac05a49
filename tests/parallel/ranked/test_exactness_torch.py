"""What only PyTorch has: groups, calls of user code, strides and dtypes, SyncBatchNorm: cases 4, 46, 47 and 59."""

from __future__ import annotations

import horovod.torch as hvd
import numpy as np
import pytest
import torch

from hvdtrain import Callback
from hvdtrain.checkpoint import load
from hvdtrain.config import TrainConfig
from hvdtrain.errors import AdapterError
from hvdtrain.torch_adapter.optimizers import build_optimizer, build_slots
from hvdtrain.torch_adapter.reduction import wrap
from tests.parallel import exact_torch, toy_torch
from tests.parallel.fitting import Fitter
from tests.parallel.ranked.test_exactness import close, numbers


@pytest.fixture
def toy(adapter, communicator):
    return Fitter(toy_torch, communicator)


# ---------------------------------------------------------------- 46: two groups


class Two(torch.nn.Module):
    """``(a + b) x``; both weights start at 1."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.ones(()))
        self.b = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return (self.a + self.b) * x


def groups(model, momentum=0.0):
    """Return SGD with rate 0.1 and decay 0.5 for ``a``, rate 0.2 and no decay for ``b``."""
    parts = [{"params": [model.a], "lr": 0.1, "weight_decay": 0.5}, {"params": [model.b], "lr": 0.2}]
    return torch.optim.SGD(parts, lr=9.0, momentum=momentum)


def fit_groups(toy, **arguments):
    run = toy.fit([1.0, 2.0], model=Two, optimizer=arguments.pop("optimizer", groups), global_batch_size=2, **arguments)
    return float(run.weights["a"]), float(run.weights["b"])


def test_case_46_each_group_keeps_its_rate_and_decay(toy):
    # a: 1 - 0.1 (1.5 + 0.5), then 0.8 - 0.1 (1.5 + 0.4); b: 1 - 0.2 * 1.5, twice.
    assert fit_groups(toy, epochs=2) == (close(0.61), close(0.4))


def test_case_46_schedule_scales_the_rates_of_all_groups(toy):
    # Half the rate in the second update: a: 0.8 - 0.05 * 1.9; b: 0.7 - 0.1 * 1.5.
    assert fit_groups(toy, epochs=2, decay="linear") == (close(0.705), close(0.55))


def test_case_46_groups_are_saved_with_the_slots_of_both(toy, shared_tmp_path):
    folder = shared_tmp_path / "run"
    fit_groups(toy, epochs=2, optimizer=lambda model: groups(model, 0.5), run_dir=folder)
    # Buffers: 2, then 0.5 * 2 + 1.5 + 0.5 * 0.8; and 1.5, then 0.75 + 1.5.
    saved = load(folder / "checkpoints" / "step-00000002").state.slots
    assert {name: float(array) for name, array in saved.items()} == {
        "a/momentum_buffer": close(2.9),
        "b/momentum_buffer": close(2.25),
    }


# ---------------------------------------------------------------- 47: calls of user code


@pytest.mark.parametrize("set_to_none", [True, False])
def test_case_47_closure_and_zero_grad_of_user_code_reduce_over_ranks(toy, set_to_none):
    model = toy_torch.Toy()
    names = {parameter: name for name, parameter in model.named_parameters()}
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), names, "none")
    x = torch.tensor([toy.rank + 1.0])

    def closure():
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = model(x).sum()
        loss.backward()
        return loss

    returned = [float(optimizer.step(closure).detach()) for _ in range(2)]
    # Each update sums x over ranks: 1, or 1 + 2.
    w = -0.1 * sum(range(1, toy.size + 1))
    assert float(model.w.detach()) == close(2 * w)
    assert toy.communicator.all_gather(returned) == [[0.0, close(w * (rank + 1))] for rank in range(toy.size)]


class Zeroes(Callback):
    """Calls ``zero_grad`` on the user's own optimizer after each step."""

    def __init__(self, set_to_none):
        self.set_to_none, self.optimizer = set_to_none, None

    def make(self, model):
        self.optimizer = groups(model)
        return self.optimizer

    def on_step_end(self, trainer, report):
        self.optimizer.zero_grad(set_to_none=self.set_to_none)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_case_47_zero_grad_in_a_callback_changes_nothing(toy, set_to_none):
    zeroes = Zeroes(set_to_none)
    assert fit_groups(toy, optimizer=zeroes.make, epochs=2, callbacks=[zeroes]) == (close(0.61), close(0.4))


class WithClosure(torch.optim.SGD):
    """An optimizer of the user's whose step takes a closure alone."""

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= group["lr"] * parameter.grad
        return None if closure is None else closure()


def test_case_47_optimizer_of_the_user_with_a_closure_trains(toy):
    run = toy.fit(
        [1.0, 2.0], optimizer=lambda model: WithClosure(model.parameters(), lr=0.1), global_batch_size=2, epochs=2
    )
    assert run.w == close(-0.3)


# ---------------------------------------------------------------- unused for a while, strides, dtypes


def test_parameter_unused_for_one_update_keeps_still_in_it(toy):
    # v is used in the first update alone, and its momentum of -2.5 waits; u: 1 - 0.15 - 0.1 (0.9 * 1.5 + 1).
    run = toy.fit([3.0, -5.0, 1.0, 1.0], model=exact_torch.Either, global_batch_size=2, batch_size=1, momentum=0.9)
    assert (float(run.weights["u"]), float(run.weights["v"])) == (close(0.615), close(1.25))
    assert float(run.slots["v/momentum_buffer"]) == close(-2.5)


class Strided(torch.nn.Module):
    """The sum of ``p x`` where ``p`` is not contiguous; buffers of bool and bfloat16; each other on each rank."""

    def __init__(self, rank, dtype=torch.float32, trains=True):
        super().__init__()
        self.p = torch.nn.Parameter((torch.arange(6.0).reshape(2, 3) + rank).t().to(dtype), requires_grad=trains)
        self.w = torch.nn.Parameter(torch.zeros(()))
        self.register_buffer("mask", torch.tensor([rank == 0, True, rank != 0]))
        self.register_buffer("low", torch.tensor([1.5, -2.25], dtype=torch.bfloat16) + rank)
        self.register_buffer("turned", (torch.arange(4.0).reshape(2, 2) + rank).t())

    def forward(self, x):
        return (x[:, None, None] * self.p.float()).sum((1, 2)) + self.w * x


@pytest.mark.parametrize("rule", ["sgd", "adam", "lamb"])
def test_parameter_that_is_not_contiguous_trains_like_another(toy, rule):
    more = {"momentum": 0.9} if rule == "sgd" else {}
    run = toy.fit([1.0, 2.0], model=lambda: Strided(toy.rank), rule=rule, global_batch_size=2, batch_size=1, **more)
    start = np.arange(6, dtype=np.float32).reshape(2, 3).T
    # Adam's first update is the rate; so is LAMB's, times |p| / |r| with r of ones.
    size = {"sgd": 0.15, "adam": 0.1, "lamb": 0.1 * np.linalg.norm(start) / np.sqrt(6)}[rule]
    np.testing.assert_allclose(run.weights["p"], start - size, atol=2e-6)
    assert not run.trainer.built_model.p.is_contiguous()


@pytest.mark.parametrize("rule", ["sgd", "adam", "adamw"])
def test_update_of_a_turned_parameter_is_that_of_a_straight_one(rule):
    """Fused kernels walk raw memory: they would pair a turned parameter with another element's gradient."""
    config = TrainConfig(optimizer=rule, momentum=0.9 if rule == "sgd" else 0.0, weight_decay=0.1)
    gradient, found = torch.tensor([[1.0, -2.0], [3.0, -4.0], [0.5, 0.25]]), []
    for turn in (lambda tensor: tensor, lambda tensor: tensor.t().contiguous().t()):
        parameter = torch.nn.Parameter(turn(torch.arange(6.0).reshape(3, 2)))
        optimizer = build_optimizer(config, [parameter])
        build_slots(config, optimizer)
        for _ in range(3):
            parameter.grad = gradient.clone()
            optimizer.step()
        found.append(parameter.detach().numpy())
    assert optimizer.param_groups[0]["fused"] is False
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_buffers_of_bool_bfloat16_and_strides_become_those_of_the_root(toy):
    run = toy.fit([1.0, 2.0], model=lambda: Strided(toy.rank), global_batch_size=2)
    found = {name: run.weights[name].tolist() for name in ("mask", "low", "turned")}
    assert found == {"mask": [True, True, False], "low": [1.5, -2.25], "turned": [[0.0, 2.0], [1.0, 3.0]]}
    buffers = dict(run.trainer.built_model.named_buffers())
    assert (buffers["mask"].dtype, buffers["low"].dtype) == (torch.bool, torch.bfloat16)


def test_frozen_bfloat16_parameter_becomes_that_of_the_root(toy):
    run = toy.fit([1.0, 2.0], model=lambda: Strided(toy.rank, torch.bfloat16, False), global_batch_size=2)
    np.testing.assert_array_equal(run.weights["p"], np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert run.trainer.built_model.p.dtype == torch.bfloat16


def test_trained_bfloat16_parameter_is_refused_by_name(toy):
    with pytest.raises(AdapterError) as caught:
        toy.trainer(lambda: Strided(toy.rank, torch.bfloat16), global_batch_size=2).fit(numbers([1.0, 2.0]))
    assert str(caught.value) == (
        "prepare: Horovod reduces no torch.bfloat16 gradients, got that of 'p'. Keep parameters in float32; "
        "precision='bf16' computes in bfloat16 on top of them."
    )


# ---------------------------------------------------------------- 4, 59: what is refused


@pytest.mark.parametrize("name", ["SparseAdam", "LBFGS"])
def test_case_4_optimizer_that_cannot_take_reduced_gradients_is_refused(toy, name):
    kind = getattr(torch.optim, name)
    trainer = toy.trainer(optimizer=lambda model: kind(list(model.parameters())), global_batch_size=2)
    with pytest.raises(AdapterError) as caught:
        trainer.fit(numbers([1.0, 2.0, 3.0]))
    assert str(caught.value) == (
        f"prepare: {name} cannot be used with reduced gradients: LBFGS evaluates the loss many times a step and "
        "SparseAdam wants sparse gradients, which are reduced dense. Use Adam or SGD."
    )


class Normed(torch.nn.Module):
    """A normalisation of one channel that takes its statistics from one batch."""

    def __init__(self, kind):
        super().__init__()
        self.norm = kind(1, momentum=1.0)

    def forward(self, x):
        return self.norm(x).sum((1, 2, 3))


def images(*pairs):
    return [{"x": np.array([[pair]], dtype=np.float32)} for pair in pairs]


@pytest.mark.parametrize("num_samples", [3, 4])
def test_case_59_sync_batch_norm_is_refused_by_name(toy, num_samples):
    data = images((0, 2), (4, 6), (10, 14), (1, 1))[:num_samples]
    with pytest.raises(AdapterError) as caught:
        toy.trainer(lambda: Normed(torch.nn.SyncBatchNorm), global_batch_size=4).fit(data)
    assert str(caught.value) == (
        "prepare: SyncBatchNorm reduces inside the forward pass, which a rank with an empty share does not make, got "
        "one at 'norm'. Use BatchNorm: its running statistics are averaged over ranks."
    )


def test_case_59_batch_norm_on_two_samples_and_one_averages_the_statistics_of_ranks(toy):
    run = toy.fit(images((0, 2), (4, 6), (10, 14)), model=lambda: Normed(torch.nn.BatchNorm2d), global_batch_size=3)
    # Of 0 2 4 6 10 14; and of 0 2 4 6 and 10 14 apart: means 3 and 12, unbiased variances 20/3 and 8.
    mean, var = {1: (6.0, 136 / 5), 2: (7.5, (20 / 3 + 8) / 2)}[toy.size]
    assert run.weights["norm.running_mean"].tolist() == [close(mean)]
    assert run.weights["norm.running_var"].tolist() == [close(var)]
    assert run.weights["norm.num_batches_tracked"] == 1


# ---------------------------------------------------------------- last: what is not right yet ends the launch


@pytest.mark.ranks(1)
def test_case_59_sync_batch_norm_of_horovod_is_refused_by_name(toy):
    with pytest.raises(AdapterError, match=r"SyncBatchNorm .* got one at 'norm'\."):
        toy.trainer(lambda: Normed(hvd.SyncBatchNorm), global_batch_size=4).fit(images((0, 2), (4, 6)))


def test_parameter_in_no_group_neither_moves_nor_clips_the_others(toy):
    # The gradient of a is 1.5 and clipped to 1; ranks hold other gradients of b, which nobody reduces.
    def only_a(model):
        return torch.optim.SGD([model.a], lr=0.1)

    assert fit_groups(toy, optimizer=only_a, epochs=2, clip_norm=1.0) == (close(0.8), 1.0)


class Loads(Callback):
    """Goes on from a checkpoint."""

    def __init__(self, path):
        self._path = path

    def on_fit_begin(self, trainer):
        trainer.import_state(load(self._path).state)


@pytest.mark.parametrize("rule", ["SGD", "Adam"])
def test_case_46_groups_go_on_from_a_checkpoint(toy, shared_tmp_path, rule):
    def make(model):
        parts = [{"params": [model.a], "lr": 0.1, "weight_decay": 0.5}, {"params": [model.b], "lr": 0.2}]
        return torch.optim.SGD(parts, momentum=0.5) if rule == "SGD" else torch.optim.Adam(parts)

    whole = fit_groups(toy, optimizer=make, epochs=3)
    fit_groups(toy, optimizer=make, epochs=2, run_dir=shared_tmp_path / "run")
    loads = Loads(shared_tmp_path / "run" / "checkpoints" / "step-00000002")
    assert fit_groups(toy, optimizer=make, epochs=1, callbacks=[loads]) == whole
