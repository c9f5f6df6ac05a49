"""The net of the problem in PyTorch."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch
from torch import nn

from tests.parity.peers.problem import Part, Problem

torch.set_num_threads(1)


def build_net(problem: Problem) -> nn.Module:
    """Return the net with the problem's weights."""
    hidden, inputs = problem.weights["fc1.weight"].shape
    classes = len(problem.weights["fc2.bias"])
    layers = OrderedDict(fc1=nn.Linear(inputs, hidden), act=nn.Tanh(), fc2=nn.Linear(hidden, classes))
    model = nn.Sequential(layers)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in problem.weights.items()})
    return model


def build_sgd(problem: Problem, model: nn.Module) -> torch.optim.SGD:
    """Return SGD with momentum."""
    return torch.optim.SGD(model.parameters(), lr=problem.lr, momentum=problem.momentum)


def to_tensors(part: Part) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features and labels."""
    return torch.from_numpy(part[0]), torch.from_numpy(part[1])


def read_weights(model: nn.Module) -> dict[str, np.ndarray]:
    """Return the weights by name."""
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}
