"""What one process computes on the same global batches, in NumPy alone; the tests compare with it.

The order of an epoch is part of the promise (drawn from seed and epoch by PCG64), so it is drawn here anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

LEARNING_RATE = 0.1


def iter_global_batches(
    samples: Sequence[float], global_batch_size: int, *, epochs: int = 1, seed: int | None = None
) -> Iterator[list[float]]:
    """Yield the samples of every update, epoch after epoch; in the order given when there is no seed."""
    for epoch in range(1, epochs + 1):
        order = np.arange(len(samples))
        if seed is not None:
            order = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(order)
        for start in range(0, len(samples), global_batch_size):
            yield [samples[row] for row in order[start : start + global_batch_size]]


def toy_weight(
    samples: Sequence[float],
    global_batch_size: int,
    *,
    epochs: int = 1,
    seed: int | None = None,
    momentum: float = 0.0,
    start: float = 0.0,
) -> float:
    """Return ``w`` after SGD on the loss ``w x``: the gradient of a batch is the mean of its ``x``."""
    w, buffer = start, 0.0
    for batch in iter_global_batches(samples, global_batch_size, epochs=epochs, seed=seed):
        buffer = momentum * buffer + sum(batch) / len(batch)
        w -= LEARNING_RATE * buffer
    return w
