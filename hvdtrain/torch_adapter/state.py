"""Portable state of a PyTorch model and optimizer: broadcast, export, import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from hvdtrain.communicator import Communicator
from hvdtrain.portable import PortableState, require_same_tensors


def model_tensors(model: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors of ``state_dict`` by name, each storage once, and ``{alias: name}`` of tied ones."""
    tensors: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            continue
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and key in first:
            aliases[name] = first[key]
            continue
        first[key] = name
        tensors[name] = tensor.detach()
    return tensors, aliases


def named_slots(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]
) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield ``(portable name, state of the parameter, slot)`` in an order that all ranks share."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for slot in sorted(state):
                yield f"{names[parameter]}/{slot}", state, slot


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


def export_state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]
) -> PortableState:
    """Return weights, buffers and tensor slots as NumPy arrays that may share memory with the model."""
    tensors, aliases = model_tensors(model)
    weights = {name: _numpy(tensor) for name, tensor in tensors.items()}
    slots = {
        name: _numpy(torch.as_tensor(state[slot]))
        for name, state, slot in named_slots(optimizer, names)
        if isinstance(state[slot], torch.Tensor | int | float)
    }
    return PortableState(weights, slots, aliases)


def import_state(
    state: PortableState,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    *,
    adopts_slots: bool,
) -> None:
    """Copy a portable state into model and optimizer; a tensor without partner is refused.

    With ``adopts_slots``, the optimizer, which makes its slots in its first step, takes those of the file.
    """
    tensors, _ = model_tensors(model)
    if adopts_slots:
        _adopt_slots(state, optimizer, names)
    slots = {name: (holder, slot) for name, holder, slot in named_slots(optimizer, names)} if state.slots else {}
    have = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    have |= {name: tuple(torch.as_tensor(holder[slot]).shape) for name, (holder, slot) in slots.items()}
    given = {name: array.shape for name, array in {**state.weights, **state.slots}.items()}
    counts = [name for name in have if name.endswith("num_batches_tracked")]
    require_same_tensors("import_state", have, given, optional=counts)
    for name, tensor in tensors.items():
        if name in state.weights:
            tensor.copy_(torch.from_numpy(state.weights[name]))
        elif name in counts:  # a file of TensorFlow's has none; one batch per update comes nearest
            tensor.fill_(state.num_updates)
    for name, (holder, slot) in slots.items():
        if isinstance(holder[slot], torch.Tensor):
            holder[slot].copy_(torch.from_numpy(state.slots[name]))
        else:
            holder[slot] = state.slots[name].item()


def _adopt_slots(state: PortableState, optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> None:
    parameters = {names[p]: p for group in optimizer.param_groups for p in group["params"]}
    for name, array in state.slots.items():
        owner, slot = name.rsplit("/", 1)
        if owner in parameters and slot not in optimizer.state[parameters[owner]]:
            device = parameters[owner].device if array.shape == tuple(parameters[owner].shape) else "cpu"
            optimizer.state[parameters[owner]][slot] = torch.from_numpy(np.array(array)).to(device)


def _describe(value: Any) -> tuple[torch.Size | None, Any]:
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else (None, value)


def _wire(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bytes in a form that Horovod takes: it refuses bool, bfloat16, complex and strides."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat if flat.numel() == 0 else flat.view(torch.uint8)


def _numpy(tensor: torch.Tensor) -> Any:
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
