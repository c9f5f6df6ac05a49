"""The loop that the PyTorch contenders share, as their users write it: mean loss, clip, AdamW."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from tests.bench.contenders.problem import Problem, Stopwatch


def build(problem: Problem) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = problem.job.required("torch_model")()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def mean_loss(problem: Problem, model: Any, batch: dict[str, Any]) -> torch.Tensor:
    found = problem.job.required("torch_loss")(model, {name: torch.as_tensor(array) for name, array in batch.items()})
    losses, weights = found if isinstance(found, tuple) else (found, torch.ones_like(found))
    return (losses * weights).sum() / weights.sum()


def run(
    problem: Problem,
    model: Any,
    optimizer: torch.optim.Optimizer,
    rank: int,
    size: int,
    *,
    no_sync: Callable[[], Any] = nullcontext,
    before_clip: Callable[[], None] = lambda: None,
    in_step: Callable[[], Any] = nullcontext,
) -> None:
    """Train and tell the times."""
    watch = Stopwatch(problem)
    for parts in problem.steps(rank, size):
        optimizer.zero_grad()
        total = 0.0
        for index, batch in enumerate(parts):
            with nullcontext() if index + 1 == len(parts) else no_sync():
                loss = mean_loss(problem, model, batch) / len(parts)
                loss.backward()
            total += loss.item()
        before_clip()
        if problem.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), problem.clip_norm)
        with in_step():
            optimizer.step()
        watch.step_done()
    watch.tell(rank)
