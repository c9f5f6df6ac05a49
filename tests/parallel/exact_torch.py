"""Models for the tests of exactness, in PyTorch; the same names as in ``exact_tensorflow``."""

from __future__ import annotations

import torch


class Lookup(torch.nn.Module):
    """Two rows of width two, from zero, with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(2, 2, sparse=True)
        torch.nn.init.zeros_(self.table.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids).sum(-1)


class Spare(torch.nn.Module):
    """``w x``, beside ``spare`` ones that the loss does not use."""

    def __init__(self, num_spare: int = 2) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))
        self.spare = torch.nn.Parameter(torch.ones(num_spare))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w * x


class Either(torch.nn.Module):
    """``u x`` for a batch that begins above 0, ``v x`` for another; both weights start at 1."""

    def __init__(self) -> None:
        super().__init__()
        self.u = torch.nn.Parameter(torch.ones(()))
        self.v = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.u * x if x[0] > 0 else self.v * x


class Headed(torch.nn.Module):
    """``w x`` plus a dense layer ``head``."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))
        self.head = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(self.head.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w * x + self.head(x[:, None])[:, 0]


def headed(*, trains: bool) -> torch.nn.Module:
    """Return a model whose ``head`` trains, or is frozen."""
    model = Headed()
    set_trains(model, trains)
    return model


def set_trains(model: torch.nn.Module, trains: bool) -> None:
    """Freeze or unfreeze ``head``."""
    model.head.weight.requires_grad_(trains)
