"""Token sequences as a data set: windows over one long array, which may be a file larger than memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hvdtrain.errors import DataError


class TokenWindows:
    """Cuts tokens into windows of ``length`` for next-token prediction; every token is predicted once.

    A sample is ``{"text": (length,) int64, "next": (length,) int64, "weight": (length,) float32}``. The last window
    may be short: it is filled with token 0 of weight 0, so that only real tokens count.
    """

    def __init__(self, tokens: NDArray[np.integer], length: int) -> None:
        """Keep the tokens, unread.

        Args:
            tokens: One-dimensional, at least two; ``np.memmap`` works, and only what is used is read.
            length: Tokens of a window, from 1.

        Raises:
            DataError: The tokens are not one row of at least two, or ``length`` is below 1.
        """
        if tokens.ndim != 1 or len(tokens) < 2 or length < 1:
            raise DataError(
                f"TokenWindows: needs one row of at least 2 tokens and a length from 1, got shape {tokens.shape} and "
                f"length {length}. Flatten the tokens."
            )
        self._tokens, self._length = tokens, length

    @classmethod
    def from_file(cls, path: Path | str, length: int, dtype: DTypeLike = np.uint16) -> TokenWindows:
        """Map a file of raw tokens into memory, as ``array.tofile`` writes them.

        Raises:
            DataError: There is no such file, or its size is no multiple of the item size.
        """
        try:
            tokens = np.memmap(path, dtype=dtype, mode="r")
        except (OSError, ValueError) as error:
            raise DataError(f"TokenWindows: {path} must be a file of {np.dtype(dtype)} tokens, got {error}.") from error
        return cls(tokens, length)

    def __len__(self) -> int:
        """Return the number of windows."""
        return -(-(len(self._tokens) - 1) // self._length)

    def __getitem__(self, index: int) -> dict[str, NDArray[np.generic]]:
        """Return one window."""
        return self.__getitems__([index])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, NDArray[np.generic]]]:
        """Return several windows."""
        return [self._window(index) for index in rows]

    def _window(self, index: int) -> dict[str, NDArray[np.generic]]:
        if not 0 <= index < len(self):
            raise IndexError(f"window must be from 0 to {len(self) - 1}, got {index}")
        start, length = index * self._length, self._length
        piece = np.asarray(self._tokens[start : start + length + 1]).astype(np.int64)
        num_pairs = len(piece) - 1
        text, following = np.zeros(length, np.int64), np.zeros(length, np.int64)
        text[:num_pairs], following[:num_pairs] = piece[:-1], piece[1:]
        return {"text": text, "next": following, "weight": (np.arange(length) < num_pairs).astype(np.float32)}
