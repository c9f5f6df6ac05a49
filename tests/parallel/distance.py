"""How far two sets of tensors lie apart."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

#: Of a tensor's norm: room for another order of summation, and for nothing else.
TOLERANCE = 1e-5


def largest_distance(tensors: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """Return the largest difference of an element, relative to the norm of its expected tensor."""
    assert tensors.keys() == expected.keys()
    return max(
        float(np.abs(values - expected[name]).max() / np.linalg.norm(expected[name]))
        for name, values in tensors.items()
    )
