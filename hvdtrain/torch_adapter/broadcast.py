"""The root's values on every rank, over Horovod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import horovod.torch as hvd
import torch

from hvdtrain.communicator import Communicator
from hvdtrain.torch_adapter.state import named_slots


def broadcast_tensors(tensors: Mapping[str, torch.Tensor]) -> None:
    """After this call every rank holds the root's values of ``tensors``, in place, whatever their dtype."""
    handles = []
    for name, tensor in tensors.items():
        wire = _wire(tensor)
        handles.append((hvd.broadcast_async_(wire, root_rank=0, name=f"broadcast.{name}"), wire, tensor))
    for handle, wire, tensor in handles:
        hvd.synchronize(handle)
        if wire.data_ptr() != tensor.data_ptr():
            tensor.copy_(wire.view(tensor.dtype).reshape(tensor.shape))


def broadcast_slots(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str], communicator: Communicator
) -> None:
    """After this call every rank holds the root's optimizer state, slots that only the root had included.

    Plain numbers and the shapes go over the control plane, tensors over Horovod; nothing makes a step, as
    ``hvd.broadcast_optimizer_state`` does.
    """
    parameters = {name: parameter for parameter, name in names.items()}
    plain = {name: _describe(state[slot]) for name, state, slot in named_slots(optimizer, names)}
    wanted = communicator.broadcast(plain)
    for name in set(plain) - set(wanted):
        parameter, slot = name.rsplit("/", 1)
        del optimizer.state[parameters[parameter]][slot]
    tensors = {}
    for name, (shape, value) in wanted.items():
        parameter, slot = name.rsplit("/", 1)
        state = optimizer.state[parameters[parameter]]
        if shape is None:
            state[slot] = value
        elif name not in plain or plain[name] != (shape, value):
            state[slot] = torch.empty(shape, dtype=value, device=parameters[parameter].device)
        if shape is not None:
            tensors[f"slot.{name}"] = state[slot]
    broadcast_tensors(tensors)


def _describe(value: Any) -> tuple[torch.Size | None, Any]:
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else (None, value)


def _wire(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bytes in a form that Horovod takes: it refuses bool, bfloat16, complex and strides."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat if flat.numel() == 0 else flat.view(torch.uint8)
