"""A straight line through a few measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Line:
    """``base + slope * x``, neither of them below 0: nothing takes less than nothing."""

    base: float
    slope: float

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]], errors: Sequence[float] | None = None) -> Line:
        """Return the line of least squares; flat, or through 0, where the best one would have a negative part.

        Args:
            points: Pairs ``(x, y)``, at least one, ``x`` above 0.
            errors: How far each ``y`` may be off, in any unit; all the same when ``None``.

        Example:
            >>> Line.through([(16, 130.0), (32, 160.0)])
            Line(base=100.0, slope=1.875)
        """
        x, y = np.array(points, dtype=np.float64).T
        weights = np.ones_like(y) if errors is None else 1 / np.array(errors) ** 2
        x0, y0 = np.average(x, weights=weights), np.average(y, weights=weights)
        spread = float(np.sum(weights * (x - x0) ** 2))
        slope = float(np.sum(weights * (x - x0) * (y - y0))) / spread if spread else 0.0
        if slope <= 0:
            return cls(float(y0), 0.0)
        if y0 - slope * x0 < 0:
            return cls(0.0, float(np.sum(weights * x * y) / np.sum(weights * x * x)))
        return cls(float(y0 - slope * x0), slope)

    def at(self, x: float) -> float:
        """Return the value at ``x``."""
        return self.base + self.slope * x

    def largest_below(self, limit: float) -> float:
        """Return the ``x`` at which the line reaches ``limit``: below 0 if never, infinite if flat below it."""
        if self.slope:
            return (limit - self.base) / self.slope
        return math.inf if self.base <= limit else -1.0
