"""The canonical optimizers in PyTorch, and their slots, built without a phantom step."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from hvdtrain.config import TrainConfig
from hvdtrain.optimizers import define

_Kind = TypeVar("_Kind", bound=torch.optim.Optimizer)

#: Types of parameters that PyTorch's fused kernels update.
_FUSED = (torch.float32, torch.float64)

#: Methods of every optimizer that PyTorch 2.13 tells its compiler to leave alone, when they are first called.
_LEFT_ALONE = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


class Lamb(torch.optim.Optimizer):
    """LAMB as :mod:`hvdtrain.optimizers` defines it; PyTorch has none of its own."""

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """Keep the hyper-parameters; meanings and ranges as in ``torch.optim.AdamW``."""
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state, grad = self.state[parameter], parameter.grad
        b1, b2 = group["betas"]
        state["step"] += 1
        count = state["step"].item()
        state["exp_avg"].lerp_(grad, 1 - b1)
        state["exp_avg_sq"].mul_(b2).addcmul_(grad, grad, value=1 - b2)
        denominator = (state["exp_avg_sq"].sqrt() / (1 - b2**count) ** 0.5).add_(group["eps"])
        r = (state["exp_avg"] / (1 - b1**count)).div_(denominator).add_(parameter, alpha=group["weight_decay"])
        weight_norm, r_norm = parameter.norm(), r.norm()
        trust = torch.where((weight_norm > 0) & (r_norm > 0), weight_norm / r_norm, torch.ones_like(r_norm))
        parameter.sub_(r * (group["lr"] * trust))


def spare_the_compiler() -> None:
    """Let optimizers be built without the import of PyTorch's compiler, which takes as long as that of PyTorch.

    For a process that does not compile; where it does later, the compiler looks into the methods after all.
    """
    if "torch._dynamo" in sys.modules:
        return
    for name in _LEFT_ALONE:
        plain = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if plain is not None:
            plain.__dynamo_disable = plain  # as ``torch._compile`` keeps what the compiler made of it


def build_optimizer(config: TrainConfig, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """Return the canonical optimizer over the parameters that train; slots follow in :func:`build_slots`.

    PyTorch's fused kernels read and write each tensor once, on CPUs too. They walk raw memory, and gradients are
    contiguous here, so parameters must be.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    lr, decay = config.learning_rate, config.weight_decay
    fused = all(p.dtype in _FUSED and p.is_cpu and p.is_contiguous() for p in trained)
    if config.optimizer == "sgd":
        sgd = _without_compiler(torch.optim.SGD)
        return sgd(trained, lr, config.momentum, weight_decay=decay, nesterov=config.nesterov, fused=fused)
    if config.optimizer == "lamb":
        return Lamb(trained, lr, config.betas, config.epsilon, decay)
    adam = _without_compiler(torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam)
    return adam(trained, lr, config.betas, config.epsilon, decay, fused=fused)


def _without_compiler(kind: type[_Kind]) -> type[_Kind]:
    """Return a subclass of the same name whose ``step`` imports no compiler, as PyTorch 2.13's own does to mark it."""
    step = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), {"step": step, "__module__": kind.__module__})


def build_slots(config: TrainConfig, optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter the zero slots that its first update would make.

    A first update on a zero slot equals PyTorch's own, which makes the slot at that moment; so state exists to be
    broadcast and saved from step 0 on, without a step that moves weights.
    """
    names = define(config).slots
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            for name in names:
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            if config.optimizer != "sgd":
                state["step"] = torch.zeros((), dtype=torch.float32)
