"""Which samples a rank works on: order of an epoch, global batches, a rank's share, micro-batches.

Integers in, index arrays out; nothing here knows a framework, a data set or another rank. Every rank computes
the same order from ``(seed, epoch)`` and takes its own part of it, so ranks never exchange indices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvdtrain.errors import ConfigError

Rows = NDArray[np.int64]

#: Above this many samples an epoch's permutation is drawn block by block, so that it fits into memory.
BLOCK_SAMPLES = 1 << 32


@dataclass(frozen=True)
class BatchSizes:
    """The three numbers of batch arithmetic, all known.

    Attributes:
        global_batch_size: Samples of one optimizer update, over ranks and passes.
        batch_size: Upper bound of samples per rank and backward pass.
        backward_passes_per_step: Backward passes of a rank for one update, when its share is full.
    """

    global_batch_size: int
    batch_size: int
    backward_passes_per_step: int


def resolve_batch_sizes(
    *,
    size: int,
    global_batch_size: int | None,
    batch_size: int | None,
    backward_passes_per_step: int | None,
) -> BatchSizes:
    """Complete the numbers that a user gave, for ``size`` ranks.

    Raises:
        ConfigError: Too few numbers, or numbers that contradict each other; the message shows the arithmetic.

    Example:
        >>> resolve_batch_sizes(size=2, global_batch_size=100, batch_size=16, backward_passes_per_step=None)
        BatchSizes(global_batch_size=100, batch_size=16, backward_passes_per_step=4)
    """
    if global_batch_size is None:
        if batch_size is None:
            raise ConfigError(
                "plan: the batch must be given, got neither global_batch_size nor batch_size. "
                "Set global_batch_size, so that the number of ranks changes nothing."
            )
        passes = backward_passes_per_step or 1
        return BatchSizes(batch_size * passes * size, batch_size, passes)
    share_size = _ceil_div(global_batch_size, size)
    if batch_size is None:
        passes = backward_passes_per_step or 1
        return BatchSizes(global_batch_size, _ceil_div(share_size, passes), passes)
    passes = _ceil_div(share_size, batch_size)
    if backward_passes_per_step is not None and backward_passes_per_step < passes:
        room = batch_size * backward_passes_per_step * size
        raise ConfigError(
            f"plan: batch_size x backward_passes_per_step x ranks must reach global_batch_size, got "
            f"{batch_size} x {backward_passes_per_step} x {size} = {room} for {global_batch_size}. "
            "Leave one of the three out, and it follows from the others."
        )
    if backward_passes_per_step is not None:
        passes = backward_passes_per_step
        batch_size = _ceil_div(share_size, passes)
    return BatchSizes(global_batch_size, batch_size, passes)


class Order:
    """The order in which one epoch visits the samples, a function of ``(seed, epoch)`` alone.

    Any epoch can be rebuilt without replaying the ones before it. Drawn with NumPy's PCG64.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        seed: int,
        epoch: int,
        shuffle: bool = True,
        block_samples: int = BLOCK_SAMPLES,
    ) -> None:
        """Draw the permutation, or that of the blocks when there are more than ``block_samples`` samples."""
        self.num_samples = num_samples
        self._key = (seed, epoch)
        self._shuffle = shuffle
        self._block_samples = block_samples
        self._cached: tuple[int, Rows] | None = None
        num_blocks = _ceil_div(num_samples, block_samples)
        self._blocks = self._permute(num_blocks) if num_blocks > 1 else np.zeros(1, dtype=np.int64)

    def rows(self, start: int, stop: int) -> Rows:
        """Return the samples at positions ``start`` to ``stop`` of the epoch, shape ``[stop - start]``."""
        if not self._shuffle:
            return np.arange(start, stop, dtype=np.int64)
        parts = [np.empty(0, dtype=np.int64)]
        first = 0
        for block in self._blocks:
            length = min(self._block_samples, self.num_samples - int(block) * self._block_samples)
            if first < stop and start < first + length:
                inside = self._block(int(block), length)
                parts.append(inside[max(start - first, 0) : stop - first].astype(np.int64))
            first += length
        return np.concatenate(parts)

    def digest(self) -> str:
        """Return a digest of the first million positions, which tells whether NumPy still draws this order."""
        head = self.rows(0, min(self.num_samples, 1_000_000))
        return hashlib.sha256(head.tobytes()).hexdigest()

    def _block(self, block: int, length: int) -> Rows:
        if self._cached is None or self._cached[0] != block:
            offset = block * self._block_samples
            drawn = self._permute(length, *((block,) if len(self._blocks) > 1 else ()))
            self._cached = (block, drawn + offset if offset else drawn)
        return self._cached[1]

    def _permute(self, length: int, *extra_key: int) -> Rows:
        rng = np.random.Generator(np.random.PCG64([*self._key, *extra_key]))
        dtype = np.uint32 if length <= BLOCK_SAMPLES else np.int64
        return rng.permutation(np.arange(length, dtype=dtype))


def share(batch: Rows, *, rank: int, size: int) -> Rows:
    """Return the part of a global batch that one rank works on.

    Parts are contiguous, cover the batch once, and differ in length by at most one, so a short last batch
    needs neither padding nor dropping; a part may be empty.

    Args:
        batch: Sample indices of one global batch, shape ``[num_samples]``.
        rank: This process, ``0 <= rank < size``.
        size: Number of processes.

    Returns:
        Indices, shape ``[num_samples // size]`` or one more.

    Example:
        >>> [share(np.arange(5), rank=r, size=3).tolist() for r in range(3)]
        [[0, 1], [2, 3], [4]]
    """
    start, stop = share_bounds(len(batch), rank=rank, size=size)
    return batch[start:stop]


def share_bounds(num_samples: int, *, rank: int, size: int) -> tuple[int, int]:
    """Return the positions ``(start, stop)`` of a rank's part of ``num_samples``; see :func:`share`."""
    short, longer = divmod(num_samples, size)
    start = rank * short + min(rank, longer)
    return start, start + short + (rank < longer)


def cut_micro_batches(rows: Rows, *, batch_size: int) -> list[Rows]:
    """Cut a rank's share into parts of at most ``batch_size``; an empty share has none.

    Example:
        >>> [part.tolist() for part in cut_micro_batches(np.arange(5), batch_size=2)]
        [[0, 1], [2, 3], [4]]
    """
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]


def iter_shares(
    order: Order,
    sizes: BatchSizes,
    *,
    rank: int,
    size: int,
    first_step: int = 0,
    stop_step: int | None = None,
) -> Iterator[list[Rows]]:
    """Yield a rank's micro-batches of rows for each global batch of an epoch, from ``first_step`` on.

    Global batch ``s`` is ``order[s * G : (s + 1) * G]`` with ``G = global_batch_size``; the last may be short.
    """
    batch = sizes.global_batch_size
    num_steps = _ceil_div(order.num_samples, batch)
    for step in range(first_step, num_steps if stop_step is None else min(stop_step, num_steps)):
        begin = step * batch
        length = min(batch, order.num_samples - begin)
        start, stop = share_bounds(length, rank=rank, size=size)
        rows = order.rows(begin + start, begin + stop)
        yield cut_micro_batches(rows, batch_size=sizes.batch_size)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
