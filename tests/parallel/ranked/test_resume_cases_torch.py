"""Round trips of PyTorch's own optimizers, whatever slots they make and when: case 15."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.parallel import toy_torch
from tests.parallel.fitting import Fitter
from tests.parallel.rules import RESUME, bits, require_round_trip

#: Class, and what is given beside the rate.
NATIVE = {
    "adagrad": (torch.optim.Adagrad, {}),
    "adagrad from 0.5": (torch.optim.Adagrad, {"initial_accumulator_value": 0.5, "lr_decay": 0.1}),
    "rmsprop centered": (torch.optim.RMSprop, {"centered": True, "momentum": 0.5}),
    "nadam": (torch.optim.NAdam, {}),
    "adadelta": (torch.optim.Adadelta, {}),
    "adam fused": (torch.optim.Adam, {"fused": True}),
    "adam foreach": (torch.optim.Adam, {"foreach": True}),
    "adam amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "adamw fused": (torch.optim.AdamW, {"fused": True}),
    "sgd fused": (torch.optim.SGD, {"fused": True, "momentum": 0.9}),
    "sgd foreach": (torch.optim.SGD, {"foreach": True, "momentum": 0.9}),
    "asgd": (torch.optim.ASGD, {}),
    "adamax": (torch.optim.Adamax, {}),
    "radam": (torch.optim.RAdam, {}),
    "rprop": (torch.optim.Rprop, {}),
}


@pytest.fixture
def toy(adapter, communicator):
    assert adapter == "torch"
    return Fitter(toy_torch, communicator)


def maker(name):
    kind, settings = NATIVE[name]
    return lambda model: kind(model.parameters(), lr=0.01, **settings)


@pytest.mark.parametrize("name", NATIVE)
def test_case_15_slots_of_native_optimizers_come_back_on_all_ranks(toy, tmp_path, name):
    require_round_trip(toy, tmp_path / "run", optimizer=maker(name))


@pytest.mark.parametrize("name", NATIVE)
def test_case_15_native_optimizers_walk_as_they_do_without_horovod(toy, name):
    model = toy_torch.Toy(1.0)
    optimizer = maker(name)(model)
    samples = [1.0, 2.0, 4.0, -1.0, 3.0, 0.5]
    for start in range(0, 6, 2):
        optimizer.zero_grad()
        model(torch.tensor(samples[start : start + 2])).mean().backward()
        optimizer.step()
    arguments = {"model": lambda: toy_torch.Toy(1.0), "optimizer": maker(name), "global_batch_size": 2}
    run = toy.fit(samples, learning_rate=0.01, **arguments)
    assert run.w == pytest.approx(float(model.w.detach()), rel=1e-6)


def test_case_15_slots_of_one_parameter_alone_come_back(toy, tmp_path):
    # Only the second layer is used before the checkpoint, so the first has no slots in the file.
    class Late(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.early = torch.nn.Parameter(torch.ones(()))
            self.late = torch.nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.late * x if x[0] > 0 else self.early * x

    settings = {"model": Late, "optimizer": lambda m: torch.optim.Adam(m.parameters(), lr=0.1), "global_batch_size": 2}
    samples = [1.0, 2.0, 3.0, 1.0, -1.0, -2.0, 1.0, 2.0]
    whole = toy.fit(samples, **settings)
    toy.fit(samples, run_dir=tmp_path / "run", max_steps=2, **settings)
    run = toy.fit(samples, run_dir=tmp_path / "run", resume=RESUME, **settings)
    assert bits(run) == bits(whole)
    assert np.all(run.slots["early/step"] == 1)
