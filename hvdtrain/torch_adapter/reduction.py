"""One reduction per update in PyTorch: Horovod's wrapped optimizer, and hooks that all fire on every rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import horovod.torch as hvd
import torch

from hvdtrain.compression import MAX_EXPONENT, SUM_EXPONENT


def wrap(optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str], compression: str) -> Any:
    """Return ``optimizer`` wrapped by Horovod, summing all gradients as one group.

    One group has a fixed order of tensors, so the sums, and with three ranks or more their last bits, do not
    depend on which gradient was ready first. Horovod makes a new optimizer; it gets copies of the slots that
    ``optimizer`` has already, such as those that Adagrad makes when it is constructed.
    """
    wrapped = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=[(name, parameter) for parameter, name in names.items()],
        op=hvd.Sum,
        groups=1,
    )
    wrapped.state.clear()
    for parameter, slots in optimizer.state.items():
        wrapped.state[parameter] = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in slots.items()}
    if compression == "fp16":
        _compress(wrapped)
    return _with_torch_signatures(wrapped)


def agreed_scales(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return one scale per gradient, equal on all ranks; see :mod:`hvdtrain.compression`. Every rank must call."""
    parts = [gradient if gradient.numel() else gradient.new_zeros(1) for gradient in gradients]
    largest = torch.stack([torch.linalg.vector_norm(part, math.inf).double() for part in parts])
    totals = hvd.synchronize(hvd.allreduce_async_(largest, op=hvd.Sum, name="hvdtrain.scales"))
    return torch.exp2((SUM_EXPONENT - totals.log2().ceil()).clamp(max=MAX_EXPONENT))


def _compress(optimizer: Any) -> None:
    """Let ``synchronize`` reduce in float16, where Horovod 0.28.1 starts to reduce in the last gradient's hook.

    That is a moment later, with one group, and then the wait for the scales is part of the reduction.
    """
    reduce, synchronize, compressor = optimizer._grouped_allreduce_grad_async, optimizer.synchronize, _ScaledHalf()

    def agree_and_synchronize() -> None:
        for group in list(optimizer._handles):
            compressor.scales = iter(agreed_scales([parameter.grad for parameter in group]))
            optimizer._handles[group] = reduce(group)
        synchronize()

    optimizer._compression = compressor
    optimizer._grouped_allreduce_grad_async = lambda group: (None, None)
    optimizer.synchronize = agree_and_synchronize


class _ScaledHalf:
    """Horovod's interface of a compression, with one scale for each tensor in the order of the group."""

    scales: Iterator[torch.Tensor]

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.dtype, torch.Tensor]]:
        scale = next(self.scales)
        return (tensor * scale.to(tensor.dtype)).half(), (tensor.dtype, scale)

    def decompress(self, tensor: torch.Tensor, context: tuple[torch.dtype, torch.Tensor]) -> torch.Tensor:
        dtype, scale = context
        return tensor.to(dtype) / scale.to(dtype)


def _with_torch_signatures(optimizer: Any) -> Any:
    """Let ``zero_grad(set_to_none=...)`` and ``step(closure)`` mean what they mean in PyTorch.

    Horovod 0.28.1 takes no argument in the first, and in the second runs the closure after it has reduced, so that
    each rank would apply its own gradients.
    """
    zero_grad, step = optimizer.zero_grad, optimizer.step

    def zero_grad_like_torch(set_to_none: bool = True) -> None:
        zero_grad()  # refuses in the middle of a reduction, and sets to None
        if not set_to_none:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.zeros_like(parameter)

    def step_like_torch(closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        step()
        return loss

    optimizer.zero_grad, optimizer.step = zero_grad_like_torch, step_like_torch
    return optimizer


def release(optimizer: Any) -> None:
    """Take Horovod's hooks off the model, so that it can be wrapped again or trained without.

    Horovod 0.28.1 keeps no handle of its hooks; they live in gradient accumulators that only the optimizer holds.
    """
    optimizer._grad_accs.clear()


class UsageHooks:
    """Records which parameters a pass used, and lets the hooks of the others fire with a zero gradient.

    Horovod reduces a group when the hooks of all its parameters have fired as often as there are passes. A rank
    with an empty share, or whose batch leaves a parameter out, would keep the others waiting.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], *, keeps_norms: bool = False) -> None:
        """Hook every parameter that trains; ``keeps_norms`` lets :meth:`own_norm` tell more than 0."""
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._fired: set[torch.Tensor] = set()
        self._used: set[torch.Tensor] = set()
        self._norms: dict[torch.Tensor, torch.Tensor] = {}
        self._keeps_norms = keeps_norms
        self._passes_left = 0
        self._handles = [_hook(parameter, self._on_grad) for parameter in self.parameters]

    def begin_step(self, num_passes: int) -> None:
        """Forget the last step; the next one has ``num_passes`` passes, at least 1."""
        self._passes_left = num_passes
        self._fired.clear()
        self._used.clear()
        self._norms.clear()

    def end_pass(self) -> None:
        """Fire the hooks that the pass left out; the fired ones are the record of what it used."""
        self._used |= self._fired
        silent = [parameter for parameter in self.parameters if parameter not in self._fired]
        if silent:
            torch.autograd.backward(silent, [torch.zeros_like(parameter) for parameter in silent])
        self._fired.clear()
        self._passes_left -= 1

    def used(self) -> list[float]:
        """Return 1 for each parameter that this rank used in the step, else 0."""
        return [float(parameter in self._used) for parameter in self.parameters]

    def own_norm(self) -> float:
        """Return the 2-norm of this rank's gradient, summed over the passes of the step, before it is reduced."""
        norms = [norm.double() for norm in self._norms.values()]
        return torch.linalg.vector_norm(torch.stack(norms)).item() if norms else 0.0

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    def _on_grad(self, parameter: torch.Tensor) -> None:
        """Run before Horovod's own hook, which takes dense contiguous gradients alone."""
        self._fired.add(parameter)
        grad = parameter.grad
        assert grad is not None
        if grad.is_sparse:
            grad = parameter.grad = grad.to_dense()
        elif self._passes_left == 1 and not grad.is_contiguous():
            parameter.grad = grad.contiguous()  # in the last pass alone, for PyTorch adds in the parameter's layout
        if self._keeps_norms and self._passes_left == 1:
            # Horovod sums over ranks in place, and its hook runs next.
            self._norms[parameter] = torch.linalg.vector_norm(grad.detach())


def _hook(parameter: torch.Tensor, function: Callable[[torch.Tensor], None]) -> Any:
    return parameter.register_post_accumulate_grad_hook(function)  # type: ignore[no-untyped-call]
