"""Prove that every rank holds the same weights: one number per tensor, compared over ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdtrain.communicator import Communicator
from hvdtrain.errors import ReplicaError

#: Words that are summed at a time, so that the positions need little memory and stay in cache.
_CHUNK_WORDS = 1 << 15


def checksum(array: NDArray[Any]) -> int:
    """Return ``sum (2 i + 1) word_i mod 2^64`` over the 32-bit words of the array's bytes.

    Odd, and so invertible, factors make any single changed word change the sum; the position makes a swap of two
    words change it. Runs at memory speed, which a cryptographic digest does not.
    """
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if len(raw) % 4:
        raw = np.concatenate([raw, np.zeros(-len(raw) % 4, dtype=np.uint8)])
    words = raw.view(np.uint32)
    factors = np.arange(1, 2 * _CHUNK_WORDS, 2, dtype=np.uint64)
    total = 0
    for start in range(0, len(words), _CHUNK_WORDS):
        piece = words[start : start + _CHUNK_WORDS].astype(np.uint64)
        total += int((piece * factors[: len(piece)]).sum()) + 2 * start * int(piece.sum())
    return total % (1 << 64)


def fingerprint(tensors: Mapping[str, NDArray[Any]]) -> str:
    """Return a text that is the same for the same names and bits, whatever the framework and the order of the names."""
    sums = sorted((name, str(array.dtype), array.shape, checksum(array)) for name, array in tensors.items())
    return hashlib.sha256(repr(sums).encode()).hexdigest()


def require_equal_replicas(where: str, tensors: Mapping[str, NDArray[Any]], communicator: Communicator) -> None:
    """Refuse, on all ranks, when a tensor is not the same bits everywhere; every rank must call.

    Args:
        where: Begins the message, such as ``"step 40"``.
        tensors: This rank's tensors; names and order are equal on all ranks.
        communicator: The ranks.

    Raises:
        ReplicaError: Names the first tensor that differs and the ranks that differ from the root.
    """
    sums = np.array([checksum(array) for array in tensors.values()], dtype=np.uint64)
    same = communicator.is_equal(sums)
    if same.all():
        return
    first = int(np.argmin(same))
    held = communicator.all_gather(int(sums[first]))
    ranks = [rank for rank, value in enumerate(held) if value != held[0]]
    error = ReplicaError(
        f"{where}: all ranks must hold the same state, got a difference in {list(tensors)[first]!r} between rank 0 "
        f"and {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}; {int((~same).sum())} of "
        f"{len(same)} tensors differ. Something changed weights on some ranks alone, such as a callback."
    )
    error.is_agreed = True
    raise error
