"""What every peer trains, read from a file, and what it leaves behind. NumPy only; nothing of hvdtrain.

The samples are visited in their own order, epoch after epoch. A global batch is the next 16 samples, the last one
of an epoch what is left; it is cut into contiguous parts, one per rank, the first rank takes the odd sample; a part
is cut into micro-batches.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Part = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Problem:
    """A small net, its samples, and how long to train it; the fields are those of the file."""

    name: str
    features: np.ndarray
    labels: np.ndarray
    weights: dict[str, np.ndarray]
    num_steps: int
    global_batch_size: int
    accumulation: int
    lr: float
    momentum: float

    @classmethod
    def read(cls, path: Path) -> Problem:
        """Read ``NAME.npz``; weights lie in it as ``fc1.weight``, in PyTorch's layout."""
        with np.load(path) as file:
            values = dict(file)
        weights = {name: values.pop(name) for name in list(values) if name.startswith("fc")}
        features, labels = values.pop("features"), values.pop("labels")
        return cls(path.stem, features, labels, weights, **{name: value.item() for name, value in values.items()})

    def rank_steps(self, rank: int, size: int) -> Iterator[list[Part]]:
        """Yield the micro-batches of one rank, step by step."""
        micro_batch_size = self.global_batch_size // (size * self.accumulation)
        for rows in self._global_batches():
            half = -(-len(rows) // size)
            mine = rows[rank * half : (rank + 1) * half]
            yield [self._part(mine[i : i + micro_batch_size]) for i in range(0, len(mine), micro_batch_size)]

    def whole_steps(self) -> Iterator[Part]:
        """Yield the global batches uncut, for one process."""
        return map(self._part, self._global_batches())

    def _part(self, rows: range) -> Part:
        return self.features[rows.start : rows.stop], self.labels[rows.start : rows.stop]

    def _global_batches(self) -> Iterator[range]:
        starts = range(0, len(self.labels), self.global_batch_size)
        for step in range(self.num_steps):
            start = starts[step % len(starts)]
            yield range(start, min(start + self.global_batch_size, len(self.labels)))


def parse_arguments() -> tuple[list[Problem], Path]:
    """Return the problems to train and the folder for what comes out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("problems", nargs="+", type=Path, help="files NAME.npz")
    parser.add_argument("--out", required=True, type=Path, help="folder for NAME-RANK.npz")
    arguments = parser.parse_args()
    return [Problem.read(path) for path in arguments.problems], arguments.out


def write_result(
    out: Path, problem: Problem, rank: int, losses: Sequence[tuple[float, int]], weights: Mapping[str, np.ndarray]
) -> None:
    """Write a rank's ``(sum of losses, samples)`` of each step and its final weights.

    Whoever reads it adds the ranks before it divides, so that the loss is right even where the training is not.
    """
    sums = np.array(losses, dtype=np.float64)
    np.savez(out / f"{problem.name}-{rank}.npz", losses=sums, **{n: np.asarray(w) for n, w in weights.items()})
