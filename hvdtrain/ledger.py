"""Proof that every sample was used exactly once in each epoch, from the samples that steps really took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdtrain.batching import Rows

#: Above this many samples the counts would cost more memory than the proof is worth; the digest remains.
_COUNTED_SAMPLES = 1 << 28


class Ledger:
    """Counts the samples of one epoch on this rank, and closes the epoch over all ranks.

    The digest (number of samples and two sums of hashed indices, modulo 2^64) adds up over ranks and over
    resumes; it equals that of the expected indices when each was used once. Where it does not, the counts of
    this process tell what happened.
    """

    def __init__(self, num_samples: int, earlier: NDArray[np.uint64] | None = None) -> None:
        """Start with nothing used of ``num_samples``, or with the digest that a checkpoint holds of the epoch.

        What an earlier process used was counted there alone, so after a resume only the digest can tell.
        """
        self._num_samples = num_samples
        counted = num_samples <= _COUNTED_SAMPLES and earlier is None
        self._counts: NDArray[np.int32] | None = np.zeros(num_samples, dtype=np.int32) if counted else None
        self._digest = np.zeros(3, dtype=np.uint64) if earlier is None else earlier.copy()

    def add(self, rows: Rows) -> None:
        """Take the samples of one micro-batch."""
        self._digest += digest_rows(rows)
        if self._counts is not None:
            np.add.at(self._counts, rows, 1)

    def digest(self, allreduce_sum: Callable[[NDArray[Any]], NDArray[Any]]) -> list[int]:
        """Return the digest of what all ranks used so far; every rank must call."""
        return [int(part) for part in allreduce_sum(self._digest)]

    def close(self, expected: Rows, allreduce_sum: Callable[[NDArray[Any]], NDArray[Any]]) -> dict[str, int | None]:
        """Return how many of the ``expected`` samples were used once, more than once, and never, over all ranks.

        Every rank must call. Samples that were not expected count as used more than once.
        """
        digest = allreduce_sum(self._digest)
        if np.array_equal(digest, digest_rows(expected)):
            return {"once": len(expected), "more": 0, "never": 0}
        if self._counts is None:
            return {"once": None, "more": None, "never": None}
        counts = allreduce_sum(self._counts)
        wanted = np.zeros(self._num_samples, dtype=bool)
        wanted[expected] = True
        return {
            "once": int((counts[wanted] == 1).sum()),
            "more": int((counts[wanted] > 1).sum() + (counts[~wanted] > 0).sum()),
            "never": int((counts[wanted] == 0).sum()),
        }


def digest_rows(rows: Rows) -> NDArray[np.uint64]:
    """Return ``[count, sum h(i), sum h(h(i))]`` modulo 2^64, with splitmix64's finaliser as ``h``."""
    first = _mix(rows.astype(np.uint64))
    second = _mix(first)
    return np.array([len(rows), first.sum(dtype=np.uint64), second.sum(dtype=np.uint64)], dtype=np.uint64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Steele et al. 2014, 'Fast splittable pseudorandom number generators', the finaliser of splitmix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
