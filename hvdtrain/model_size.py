"""What a model and its optimizer hold, counted from shapes and dtypes: the same in a run's header and in a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

#: Tensors of batch norm that no gradient moves, by the last part of their neutral name.
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

_BYTES_OF_OTHER_TYPES = {"bfloat16": 2}


@dataclass(frozen=True)
class ModelSize:
    """Counts of one replica.

    Attributes:
        num_parameters: Values that an optimizer may move.
        num_tensors: Tensors that hold them.
        weights: Bytes of parameters and buffers.
        gradients: Bytes of one gradient per parameter.
        slots: Bytes that the optimizer holds.
    """

    num_parameters: int
    num_tensors: int
    weights: int
    gradients: int
    slots: int

    @property
    def held(self) -> int:
        """Bytes that every rank holds all the while, whatever its batch."""
        return self.weights + self.gradients + self.slots


def model_size(tensors: Mapping[str, tuple[tuple[int, ...], str]]) -> ModelSize:
    """Return what tensors of these shapes and dtypes come to.

    Args:
        tensors: Shape and dtype by neutral name, slots included, as ``Signature.tensors`` has them.

    Example:
        >>> model_size({"fc.weight": ((10, 20), "float32"), "fc.weight/exp_avg": ((10, 20), "float32")})
        ModelSize(num_parameters=200, num_tensors=1, weights=800, gradients=800, slots=800)
    """
    parameters = {name: told for name, told in tensors.items() if _is_parameter(name)}
    slots = sum(_num_bytes(told) for name, told in tensors.items() if _is_slot(name))
    return ModelSize(
        num_parameters=sum(math.prod(shape) for shape, _ in parameters.values()),
        num_tensors=len(parameters),
        weights=sum(map(_num_bytes, tensors.values())) - slots,
        gradients=sum(map(_num_bytes, parameters.values())),
        slots=slots,
    )


def _is_slot(name: str) -> bool:
    return "/" in name


def _is_parameter(name: str) -> bool:
    return not _is_slot(name) and name.rsplit(".", 1)[-1] not in _STATISTICS


def _num_bytes(told: tuple[tuple[int, ...], str]) -> int:
    shape, dtype = told
    return math.prod(shape) * (_BYTES_OF_OTHER_TYPES.get(dtype) or np.dtype(dtype).itemsize)
