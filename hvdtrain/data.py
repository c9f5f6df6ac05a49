"""Data sets in, stacked micro-batches out, prepared ahead of the step by threads.

Threads, never forked processes: a fork after MPI has started is unsafe. Nothing here knows a framework; a batch
is a structure of NumPy arrays that the adapter turns into tensors.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from hvdtrain.batching import Rows
from hvdtrain.errors import DataError

T = TypeVar("T")

#: A sample or a batch: an array, or a dict or tuple of them.
Structure = Any
Augment = Callable[[Structure, np.random.Generator], Structure]
Collate = Callable[[Sequence[Structure]], Structure]

#: Parts of a batch that each thread reads: more than one, so that a slow sample does not hold up a fast rest.
_PARTS_PER_WORKER = 4

#: Steps that are prepared ahead; two hide a slow sample without holding much memory.
PREFETCH_STEPS = 2


class IndexedData(Protocol):
    """A data set with a length. ``__getitems__(rows)``, when it exists, returns the samples of many rows at once."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int) -> Structure:
        """Return one sample: a dict or tuple of values that NumPy can hold."""


@dataclass(frozen=True)
class MicroBatch:
    """What one backward pass of one rank works on.

    Attributes:
        data: The samples' structure, stacked; leading dimension ``num_samples``.
        num_samples: Samples of this batch.
        rows: Their indices, shape ``[num_samples]``; ``None`` for a stream, whose samples have none.
    """

    data: Structure
    num_samples: int
    rows: Rows | None = None


class Loader:
    """Turns rows of a data set into batches: read, augment, stack."""

    def __init__(
        self,
        data: IndexedData,
        *,
        seed: int = 0,
        augment: Augment | None = None,
        collate: Collate | None = None,
        workers: int = 0,
    ) -> None:
        """Keep the data set and how its samples become a batch.

        Args:
            data: The data set.
            seed: Seed of ``augment``.
            augment: Called as ``augment(sample, rng)``; ``rng`` depends on ``(seed, epoch, index)`` alone, so
                neither the number of ranks nor a resume changes a sample.
            collate: Makes a batch of a list of samples; :func:`stack` when not given.
            workers: Threads that read samples in parallel; 0 reads them one after the other.
        """
        self._data = data
        self._seed = seed
        self._augment = augment
        self._collate = collate or stack
        self._workers = workers

    def iter_steps(self, steps: Iterable[Sequence[Rows]], *, epoch: int) -> Generator[list[MicroBatch], None, None]:
        """Yield, for each step's list of rows, the list of its micro-batches, prepared ahead by a thread."""
        pool = ThreadPoolExecutor(self._workers, "hvdtrain-data") if self._workers else None
        try:
            made = ([self._load(rows, epoch, pool) for rows in step] for step in steps)
            yield from prefetch(made, PREFETCH_STEPS)
        finally:
            if pool is not None:
                pool.shutdown(cancel_futures=True)

    def load(self, rows: Rows) -> MicroBatch:
        """Return one batch of the samples as they are, neither augmented nor prepared ahead."""
        return MicroBatch(narrow(self._collate(self._read(rows))), len(rows), rows)

    def _load(self, rows: Rows, epoch: int, pool: ThreadPoolExecutor | None) -> MicroBatch:
        if pool is None or hasattr(self._data, "__getitems__"):
            samples = self._read(rows)
        else:
            parts = np.array_split(rows, min(_PARTS_PER_WORKER * self._workers, len(rows)))
            samples = [sample for part in pool.map(self._read, parts) for sample in part]
        if self._augment is not None:
            samples = [
                self._augment(sample, np.random.default_rng([self._seed, epoch, index]))
                for sample, index in zip(samples, rows.tolist(), strict=True)
            ]
        return MicroBatch(narrow(self._collate(samples)), len(rows), rows)

    def _read(self, rows: Rows) -> list[Structure]:
        read_many = getattr(self._data, "__getitems__", None)
        if read_many is not None:
            return list(read_many(rows.tolist()))
        return [self._data[index] for index in rows.tolist()]


def stack(samples: Sequence[Structure]) -> Structure:
    """Stack samples of one structure; float64 becomes float32, other dtypes stay.

    Raises:
        DataError: Samples differ in structure or shape, or hold what NumPy can only keep as objects.

    Example:
        >>> stack([{"x": 1.5, "y": 2}, {"x": 2.5, "y": 3}])["x"]
        array([1.5, 2.5], dtype=float32)
    """
    first = samples[0]
    if isinstance(first, dict):
        keys = list(first)
        if any(not isinstance(sample, dict) or sample.keys() != first.keys() for sample in samples):
            raise DataError(f"stack: samples must have the same keys, got {keys} and others. Check the data set.")
        return {key: stack([sample[key] for sample in samples]) for key in keys}
    if isinstance(first, tuple | list):
        if any(not isinstance(sample, tuple | list) or len(sample) != len(first) for sample in samples):
            raise DataError(f"stack: samples must have {len(first)} parts each, got others. Check the data set.")
        return tuple(stack(list(parts)) for parts in zip(*samples, strict=True))
    arrays = [np.asarray(sample) for sample in samples]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise DataError(
            f"stack: samples of a batch must have one shape, got {shapes[0]} and {shapes[1]}. "
            "Pad them in the data set, or give the job a collate(samples)."
        )
    stacked = np.stack(arrays)
    if stacked.dtype == object:
        raise DataError(
            f"stack: a sample must hold values that NumPy can keep, got {type(first).__name__}. "
            "Return numbers, strings or arrays from the data set."
        )
    return narrow(stacked)


def narrow(structure: Structure) -> Structure:
    """Turn float64 arrays into float32, whoever made the batch; other dtypes stay."""
    return map_structure(structure, _narrow_array)


def map_structure(structure: Structure, function: Callable[[Any], Any]) -> Structure:
    """Return the structure with ``function`` applied to every leaf; lists become tuples.

    Example:
        >>> map_structure({"x": 1, "pair": (2, 3)}, lambda leaf: 10 * leaf)
        {'x': 10, 'pair': (20, 30)}
    """
    if isinstance(structure, dict):
        return {key: map_structure(value, function) for key, value in structure.items()}
    if isinstance(structure, tuple | list):
        return tuple(map_structure(value, function) for value in structure)
    return function(structure)


def _narrow_array(leaf: Any) -> Any:
    is_wide = isinstance(leaf, np.ndarray) and leaf.dtype == np.float64
    return leaf.astype(np.float32) if is_wide else leaf


def prefetch(items: Iterable[T], depth: int) -> Generator[T, None, None]:
    """Yield ``items``, made up to ``depth`` ahead by one thread; its error is raised here, in its place.

    Closing the iterator early ends the thread.
    """
    ready: queue.Queue[tuple[bool, Any]] = queue.Queue(maxsize=depth)
    closed = threading.Event()

    def put(is_item: bool, value: Any) -> bool:
        while not closed.is_set():
            try:
                ready.put((is_item, value), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def produce() -> None:
        try:
            for item in items:
                if not put(True, item):
                    return
            put(False, None)
        except BaseException as error:
            put(False, error)

    thread = threading.Thread(target=produce, name="hvdtrain-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            is_item, value = ready.get()
            if is_item:
                yield value
            elif value is None:
                return
            else:
                raise value
    finally:
        closed.set()
        thread.join()
