"""The toy models in PyTorch; the same names as in ``toy_tensorflow``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from hvdtrain.torch_adapter.trainer import TorchTrainer as Trainer


class Toy(torch.nn.Module):
    """``w x`` with one trained weight, beside tensors that no update may move."""

    def __init__(self, start: float = 0.0, fixed: Mapping[str, np.ndarray] | None = None) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(start))
        for name, values in (fixed or {}).items():
            tensor = torch.from_numpy(np.array(values))
            if tensor.dtype == torch.bool:
                self.register_buffer(name, tensor)
            else:
                self.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w * x


class Tied(torch.nn.Module):
    """``w x + w x`` through two layers that share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(1, 1, bias=False)
        self.second = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.first.weight)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        column = x[:, None]
        return (self.first(column) + self.second(column))[:, 0]


class Masking(torch.nn.Module):
    """Dropout, then batch normalisation inside a sub-layer ``inner``, then a dense layer that sums with ``w``."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(4, eps=1e-3))
        self.w = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w * self.inner(x).sum(1)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def lazy_model(seed: int) -> torch.nn.Module:
    """Return a layer that makes its weights at the first batch, drawn from ``seed``."""
    torch.manual_seed(seed)
    return torch.nn.LazyLinear(1, bias=False)


def random_model(seed: int) -> torch.nn.Module:
    """Return a network with weights drawn from ``seed``."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def twice_named(start: float = 0.0) -> tuple[Any, Any]:
    """Return a model and a function that makes its optimizer with one parameter listed twice."""

    def optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
        made = torch.optim.SGD(model.parameters(), lr=0.1)
        made.param_groups[0]["params"].append(model.w)  # the constructor would refuse or warn by itself
        return made

    return Toy(start), optimizer


def only_large(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return ``w x`` where x is above 1.5 and 0 elsewhere; without any such x, w has no part in it."""
    is_large = batch["x"] > 1.5
    return is_large * model(batch["x"]) if is_large.any() else 0.0 * batch["x"]


def mean(values: torch.Tensor) -> torch.Tensor:
    """Return the scalar mean."""
    return values.mean()


def eager() -> AbstractContextManager[None]:
    """PyTorch runs eagerly in every test."""
    return nullcontext()


def threads() -> int:
    """Return the threads of one operation."""
    return torch.get_num_threads()


class LocalTrainer(Trainer):
    """Negative control: each rank updates by the mean gradient of its own samples."""

    def prepare(self, probe: Any) -> Any:
        signature = super().prepare(probe)
        self._optimizer._compression = _KeepLocal(self.topology.size)
        return signature


class _KeepLocal:
    """Sends a copy, and hands back what this rank had, times the ranks, in place of the sum."""

    def __init__(self, size: int) -> None:
        self._size = size

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tensor.clone(), tensor.detach().clone() * self._size

    def decompress(self, tensor: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        return own


class LateNormTrainer(Trainer):
    """Negative control: takes the norm of this rank's gradient after the reduction."""

    def prepare(self, probe: Any) -> Any:
        signature = super().prepare(probe)
        self._usage.own_norm = self._late_norm
        return signature

    def _late_norm(self) -> float:
        self._optimizer.synchronize()
        return float(torch.stack([p.grad.norm() for p in self._usage.parameters]).norm())


class SilentTrainer(Trainer):
    """Negative control: every rank keeps the weights that it was born with."""

    def broadcast_state(self) -> None:
        pass
