"""Portable state of a PyTorch model and optimizer: names, export, import; loads without Horovod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

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


def load_weights(model: torch.nn.Module, state: PortableState, names: Mapping[str, str]) -> None:
    """Copy the weights of a portable state into a model; ``names`` is for Keras alone."""
    tensors = {name: torch.from_numpy(array) for name, array in state.weights.items()}
    tensors |= {alias: tensors[name] for alias, name in state.aliases.items()}
    have = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    counts = [name for name in have if name.endswith("num_batches_tracked")]
    require_same_tensors("load_weights", have, {n: tuple(t.shape) for n, t in tensors.items()}, optional=counts)
    model.load_state_dict(tensors, strict=False)  # all but what is optional was found


def _adopt_slots(state: PortableState, optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> None:
    parameters = {names[p]: p for group in optimizer.param_groups for p in group["params"]}
    for name, array in state.slots.items():
        owner, slot = name.rsplit("/", 1)
        if owner in parameters and slot not in optimizer.state[parameters[owner]]:
            device = parameters[owner].device if array.shape == tuple(parameters[owner].shape) else "cpu"
            optimizer.state[parameters[owner]][slot] = torch.from_numpy(np.array(array)).to(device)


def _numpy(tensor: torch.Tensor) -> Any:
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
