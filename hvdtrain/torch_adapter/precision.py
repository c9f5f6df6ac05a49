"""How PyTorch computes what the job wrote: in which precision, and compiled or as it stands.

Neither touches parameters, gradients, optimizer slots or names of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hvdtrain.data import map_structure
from hvdtrain.errors import AdapterError

#: A job's loss or metrics: ``function(model, batch)``.
JobFunction = Callable[[Any, Any], Any]


def computed_in(precision: str, function: JobFunction, device: torch.device) -> JobFunction:
    """Return ``function`` computed in ``precision``: for ``bf16`` what autocast takes for safe runs in bfloat16."""
    if precision == "fp32":
        return function

    def in_bfloat16(model: Any, batch: Any) -> Any:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return function(model, batch)

    return in_bfloat16


def compiled(function: JobFunction, device: torch.device) -> JobFunction:
    """Return ``function`` compiled by ``torch.compile``, with the number of samples left open.

    The function is compiled and not the model, so that the model's names, hooks and class stay, and whatever of the
    model the job calls is compiled too. PyTorch compiles a batch of one sample apart from all others.

    Raises:
        AdapterError: PyTorch cannot compile here, such as without a C++ compiler; or later, what it is given.
    """
    _run(torch.compile(_doubled), torch.zeros(2, device=device))  # a missing compiler is found here, on all ranks
    body = torch.compile(function)

    def compiling(model: Any, batch: Any) -> Any:
        map_structure(batch, _leave_open)
        return _run(body, model, batch)

    return compiling


def widened(values: torch.Tensor) -> torch.Tensor:
    """Return values that are summed: in float32 at least."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def refuse_narrow(model: torch.nn.Module) -> None:
    """Refuse parameters whose gradients Horovod 0.28.1 cannot reduce.

    Raises:
        AdapterError: Names the first one.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.complex64, torch.complex128):
            raise AdapterError(
                f"prepare: Horovod reduces no {parameter.dtype} gradients, got that of {name!r}. Keep parameters in "
                "float32; precision='bf16' computes in bfloat16 on top of them."
            )


def _doubled(tensor: torch.Tensor) -> torch.Tensor:
    return 2 * tensor


def _run(body: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return body(*arguments)
    except torch._dynamo.exc.BackendCompilerFailed as error:  # importing it costs every run a second
        told = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise AdapterError(
            f"compile: PyTorch must be able to compile the loss, got {told.strip()}. On a CPU it needs a C++ "
            "compiler: install g++ or name one in CXX. Or leave compile out."
        ) from error


def _leave_open(tensor: torch.Tensor) -> None:
    if tensor.ndim:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
