"""Sums of values and of weights, divided once, so that a mean over ranks and batches is the mean over elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdtrain.errors import DataError


class Meter:
    """Weighted sums by name.

    Example:
        >>> meter = Meter(["loss"])
        >>> meter.add({"loss": (6.0, 3.0)})
        >>> meter.add({"loss": (1.0, 1.0)})
        >>> meter.means()
        {'loss': 1.75}
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Start every named sum at zero."""
        self.names = tuple(names)
        self._sums: NDArray[np.float64] = np.zeros((len(self.names), 2))

    def add(self, sums: Mapping[str, tuple[float, float]]) -> None:
        """Add ``{name: (sum of weighted values, sum of weights)}`` for all names of this meter."""
        self._sums += [sums[name] for name in self.names]

    def reduce(self, allreduce_sum: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        """Replace the sums by those over all ranks; every rank must call."""
        self._sums = allreduce_sum(self._sums)

    def weight(self, name: str) -> float:
        """Return the sum of weights of ``name``."""
        return float(self._sums[self.names.index(name), 1])

    def means(self) -> dict[str, float | None]:
        """Return each mean; ``None`` where the weights sum to zero, because no mean exists there."""
        return {
            name: float(total / weight) if weight else None
            for name, (total, weight) in zip(self.names, self._sums, strict=True)
        }

    def sums(self) -> list[list[float]]:
        """Return ``[sum of weighted values, sum of weights]`` of each name, as JSON keeps it exactly."""
        return [[float(part) for part in row] for row in self._sums]

    def restore(self, sums: Sequence[Sequence[float]]) -> None:
        """Take sums that :meth:`sums` returned."""
        self._sums = np.array(sums, dtype=np.float64)

    def reset(self) -> None:
        """Start again at zero."""
        self._sums = np.zeros_like(self._sums)


def require_elements(where: str, shapes: Sequence[Sequence[int] | None], num_samples: int, reduction_cure: str) -> None:
    """Refuse a loss or metric that is not one value per element, with or without weights.

    Args:
        where: Begins the message, such as ``loss``.
        shapes: Shape of the values, and of the weights when there are any; ``None`` for what is no tensor.
        num_samples: Samples of the batch that it was computed on.
        reduction_cure: How to ask this framework for per-element values.

    Raises:
        DataError: A scalar, fewer values than samples, or weights of another shape.
    """
    told = [None if shape is None else tuple(shape) for shape in shapes]
    if len(told) not in (1, 2) or None in told:
        raise DataError(
            f"{where}: must return a tensor of per-element values, or (values, weights), got {len(told)} values of "
            f"shapes {told}."
        )
    values = told[0]
    assert values is not None
    if int(np.prod(values)) < num_samples:
        raise DataError(
            f"{where}: must return one value per element, got shape {list(values)} for {num_samples} samples. "
            f"A mean hides how much each rank weighs: use {reduction_cure} and return what it gives."
        )
    if len(told) == 2 and told[1] != values:
        raise DataError(
            f"{where}: values and weights must have one shape, got {list(values)} and {list(told[1] or ())}."
        )


def require_own_elements(where: str, of_two: Sequence[int], of_one: Sequence[int]) -> None:
    """Refuse a loss whose elements belong to several samples, as a wrong broadcast makes them.

    ``(n, 1)`` minus ``(n,)`` is ``(n, n)``: it trains, and its value depends on how samples are shared out.

    Args:
        where: Begins the message.
        of_two: Shape of the values for two samples.
        of_one: Shape for the first of them alone.

    Raises:
        DataError: More than the first dimension depends on the number of samples.
    """
    if tuple(of_two[1:]) != tuple(of_one[1:]):
        raise DataError(
            f"{where}: each value must belong to one sample, got shape {list(of_two)} for 2 samples and {list(of_one)} "
            "for 1. Give both sides of the difference one shape, such as (n, 1) and (n, 1)."
        )
