"""Framework-neutral names and layouts of weights and optimizer slots.

The neutral form is PyTorch's: dotted names, kernels with the output first. This module maps the names and
kernels of Keras layers to it and back; it sees NumPy arrays and strings, never a framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdtrain.errors import AdapterError, CheckpointError, ConfigError

Array = NDArray[Any]


@dataclass
class PortableState:
    """Weights and optimizer slots of a model at one step.

    Attributes:
        weights: Parameters and buffers by neutral name, such as ``fc.weight``.
        slots: Optimizer slots as ``<parameter>/<slot>``, such as ``fc.weight/exp_avg``.
        aliases: Tied weights: ``{second name: first name}``; the first one holds the values.
        num_updates: Optimizer updates behind this state.
    """

    weights: dict[str, Array]
    slots: dict[str, Array] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    num_updates: int = 0

    def signature(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return shape and dtype of every tensor by name."""
        tensors = {**self.weights, **self.slots}
        return {name: (array.shape, str(array.dtype)) for name, array in tensors.items()}


@dataclass(frozen=True)
class Layout:
    """How one Keras kernel is laid out against PyTorch's.

    Attributes:
        axes: Permutation that takes the Keras array to the neutral one; ``None`` leaves it as it is.
        is_depthwise: The kernel is ``[..., channels, multiplier]`` and becomes ``[channels * multiplier, 1, ...]``.
    """

    axes: tuple[int, ...] | None = None
    is_depthwise: bool = False

    def to_portable(self, array: Array) -> Array:
        """Return the neutral array of a Keras one, in the same memory where a permutation of axes is all it takes."""
        if self.is_depthwise:
            *window, channels, multiplier = array.shape
            moved = np.moveaxis(array, (-2, -1), (0, 1))
            return np.ascontiguousarray(moved.reshape(channels * multiplier, 1, *window))
        return array if self.axes is None else array.transpose(self.axes)

    def from_portable(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Return the Keras array, of ``shape``, of a neutral one."""
        if self.is_depthwise:
            *window, channels, multiplier = shape
            split = array.reshape(channels, multiplier, *window)
            return np.ascontiguousarray(np.moveaxis(split, (0, 1), (-2, -1)))
        return array if self.axes is None else np.ascontiguousarray(array.transpose(np.argsort(self.axes)))


_SAME = Layout()
_DENSE = Layout((1, 0))
_CONVOLUTIONS = {1: Layout((2, 1, 0)), 2: Layout((3, 2, 0, 1)), 3: Layout((4, 3, 0, 1, 2))}
_NORM = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
#: Keras layer class -> {variable: (neutral suffix, layout)}; the bias of each is ``bias``.
_LAYERS: dict[str, dict[str, tuple[str, Layout]]] = {
    "Dense": {"kernel": ("weight", _DENSE)},
    **{f"Conv{n}D": {"kernel": ("weight", layout)} for n, layout in _CONVOLUTIONS.items()},
    **{f"DepthwiseConv{n}D": {"kernel": ("weight", Layout(is_depthwise=True))} for n in (1, 2)},
    "Embedding": {"embeddings": ("weight", _SAME)},
    "LayerNormalization": {name: (suffix, _SAME) for name, suffix in _NORM.items()},
    "BatchNormalization": {name: (suffix, _SAME) for name, suffix in _NORM.items()},
}


def from_keras(layer_class: str, variable: str) -> tuple[str, Layout]:
    """Return the neutral suffix and the layout of a Keras layer's variable; other layers keep theirs.

    Example:
        >>> from_keras("Dense", "kernel")
        ('weight', Layout(axes=(1, 0), is_depthwise=False))
    """
    return _LAYERS.get(layer_class, {}).get(variable, (variable, _SAME))


def apply_names(derived: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Return ``{keras path: neutral name}`` with a job's own ``names = {neutral: keras path}`` in force.

    Raises:
        ConfigError: ``names`` mentions a path that the model has not, or two paths end at one name.
    """
    missing = sorted(set(names.values()) - set(derived))
    if missing:
        raise ConfigError(
            f"names: every path must be a variable of the Keras model, got {missing}. Its paths: {sorted(derived)}."
        )
    result = {**derived, **{path: name for name, path in names.items()}}
    taken: dict[str, str] = {}
    for path, name in result.items():
        if name in taken:
            raise ConfigError(
                f"names: each weight needs a name of its own, got {name!r} for {taken[name]!r} and {path!r}. "
                "Give the layers different names, or the job a names mapping."
            )
        taken[name] = path
    return result


def require_same_trained(where: str, wrapped: Sequence[str], trained: Sequence[str]) -> None:
    """Refuse a model whose parameters were frozen or unfrozen after its optimizer was wrapped.

    Horovod reduces the parameters that trained when it wrapped the optimizer; one unfrozen later would be updated by
    each rank alone, and one frozen later would keep the other ranks waiting.

    Raises:
        AdapterError: Names the parameters that changed.
    """
    if list(wrapped) == list(trained):
        return
    thawed, frozen = sorted(set(trained) - set(wrapped)), sorted(set(wrapped) - set(trained))
    raise AdapterError(
        f"{where}: the parameters that train must stay the same during fit, got unfrozen: {thawed or 'none'}, frozen: "
        f"{frozen or 'none'}. Freeze before fit, and call fit again after a change."
    )


def require_same_tensors(
    where: str,
    have: Mapping[str, tuple[int, ...]],
    given: Mapping[str, tuple[int, ...]],
    *,
    optional: Iterable[str] = (),
) -> None:
    """Refuse when two sets of tensors differ in names or shapes; the message lists both sides.

    Args:
        where: Begins the message.
        have: Shape by name in the model.
        given: Shape by name in the file.
        optional: Names that may be missing on either side.

    Raises:
        CheckpointError: A tensor has no partner, or another shape.
    """
    free = set(optional)
    only_model = sorted(set(have) - set(given) - free)
    only_file = sorted(set(given) - set(have) - free)
    shapes = [
        f"{name} {have[name]} and {given[name]}" for name in sorted(set(have) & set(given)) if have[name] != given[name]
    ]
    if not (only_model or only_file or shapes):
        return
    raise CheckpointError(
        f"{where}: model and file must hold the same tensors, got only in the model: {only_model or 'none'}; "
        f"only in the file: {only_file or 'none'}; of different shape (model, file): {shapes or 'none'}. "
        "Use the model that wrote the file, or give the job a names mapping."
    )
