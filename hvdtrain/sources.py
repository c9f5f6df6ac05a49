"""Where the steps of an epoch come from: a data set with a length, or a stream; the loop sees no difference."""

from __future__ import annotations

import abc
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdtrain.batching import BatchSizes, Order, cut_micro_batches, iter_shares, share_bounds
from hvdtrain.config import TrainConfig
from hvdtrain.data import Augment, Collate, IndexedData, Loader, MicroBatch, narrow, prefetch, stack
from hvdtrain.errors import DataError
from hvdtrain.ledger import Ledger
from hvdtrain.stream import ShardReader, Stream, Taken
from hvdtrain.topology import Topology

AllReduceSum = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True)
class SourceStep:
    """A rank's part of one global batch.

    Attributes:
        micro_batches: Its batches; none for an empty share.
        is_last: Whether this rank has nothing left after it; the epoch ends when no rank has.
    """

    micro_batches: list[MicroBatch]
    is_last: bool


class Source(abc.ABC):
    """The training data of one rank."""

    @abc.abstractmethod
    def probe(self) -> MicroBatch:
        """Return two samples, neither augmented nor used up."""

    @abc.abstractmethod
    def iter_epoch(self, epoch: int, *, first_step: int, max_steps: int | None) -> Generator[SourceStep, None, None]:
        """Yield the steps of an epoch, counted from 1, from ``first_step`` on; at most ``max_steps`` of them."""

    @abc.abstractmethod
    def close_epoch(self, epoch: int, num_steps: int, allreduce_sum: AllReduceSum) -> dict[str, int | None] | None:
        """Return the ledger of an epoch of which ``num_steps`` are done; ``None`` where samples have no index."""

    @abc.abstractmethod
    def facts(self, epoch: int) -> dict[str, Any]:
        """Return what must be the same when a run goes on: length and order, or shards."""

    @abc.abstractmethod
    def position(self, allreduce_sum: AllReduceSum) -> dict[str, Any]:
        """Return what a checkpoint must know of the data's position; every rank must call."""

    @abc.abstractmethod
    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from the facts and position that a checkpoint holds."""


class IndexedSource(Source):
    """A data set with a length, visited in the order of :class:`Order`."""

    def __init__(
        self, data: IndexedData, sizes: BatchSizes, topology: Topology, config: TrainConfig, loader: Loader
    ) -> None:
        """Keep the data set and its place among the ranks."""
        self._num_samples = len(data)
        self._sizes, self._topology, self._config, self._loader = sizes, topology, config, loader
        self._ledger = Ledger(self._num_samples)
        self._earlier: NDArray[np.uint64] | None = None

    def probe(self) -> MicroBatch:
        """Return the first two samples, the first twice when there is one."""
        return self._loader.load(np.minimum([0, 1], self._num_samples - 1))

    def iter_epoch(self, epoch: int, *, first_step: int, max_steps: int | None) -> Generator[SourceStep, None, None]:
        """Yield this rank's share of each global batch; the last batch may be short, a share may be empty."""
        self._ledger = Ledger(self._num_samples, self._earlier if first_step else None)
        shares = iter_shares(
            self._order(epoch),
            self._sizes,
            rank=self._topology.rank,
            size=self._topology.size,
            first_step=first_step,
            stop_step=None if max_steps is None else first_step + max_steps,
        )
        num_steps = -(-self._num_samples // self._sizes.global_batch_size)
        with closing(self._loader.iter_steps(shares, epoch=epoch)) as steps:
            for step, micro_batches in enumerate(steps, first_step + 1):
                for batch in micro_batches:
                    assert batch.rows is not None
                    self._ledger.add(batch.rows)
                yield SourceStep(micro_batches, is_last=step == num_steps)

    def close_epoch(self, epoch: int, num_steps: int, allreduce_sum: AllReduceSum) -> dict[str, int | None]:
        """Return how many of the samples of the steps done were used once, more than once, never."""
        stop = min(num_steps * self._sizes.global_batch_size, self._num_samples)
        return self._ledger.close(self._order(epoch).rows(0, stop), allreduce_sum)

    def facts(self, epoch: int) -> dict[str, Any]:
        """Return the length, and a digest of the order that tells whether NumPy still draws it."""
        order = self._order(max(epoch, 1)).digest()
        return {"kind": "indexed", "num_samples": self._num_samples, "order_digest": order}

    def position(self, allreduce_sum: AllReduceSum) -> dict[str, Any]:
        """Return the ledger's digest of the epoch so far."""
        return {"ledger_digest": self._ledger.digest(allreduce_sum)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Let the root's ledger begin with what was used before."""
        digest = np.array(saved["ledger_digest"], dtype=np.uint64)
        self._earlier = digest if self._topology.is_root else np.zeros_like(digest)

    def _order(self, epoch: int) -> Order:
        return Order(self._num_samples, seed=self._config.seed, epoch=epoch, shuffle=self._config.shuffle)


class StreamSource(Source):
    """A stream, read ahead by one sample, so that every rank votes for the end before it comes."""

    def __init__(
        self,
        stream: Stream,
        sizes: BatchSizes,
        topology: Topology,
        config: TrainConfig,
        *,
        augment: Augment | None = None,
        collate: Collate | None = None,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep the stream and its place among the ranks."""
        self._moved = moved
        self._stream, self._sizes, self._topology, self._config = stream, sizes, topology, config
        self._augment, self._collate = augment, collate or stack
        self._num_shards = stream.count_shards(size=topology.size, workers=config.data_workers)
        self._is_bounded = config.steps_per_epoch is not None or config.max_steps is not None
        self._reader: ShardReader | None = None
        self._consumed = [0] * self._num_shards  # by the steps done, not by those prepared ahead

    def probe(self) -> MicroBatch:
        """Return the first two samples of a reader of its own, so that none is used up."""
        samples = [
            one.sample for one in self._open(rank=0, size=1).take(2)
        ]  # of all shards: the root's own may be empty
        if not samples:
            raise DataError(
                "plan: train_data must hold at least 1 sample, got an empty stream. Check the path or the filter."
            )
        return MicroBatch(narrow(self._collate([samples[0], samples[-1]])), 2)

    def iter_epoch(self, epoch: int, *, first_step: int, max_steps: int | None) -> Generator[SourceStep, None, None]:
        """Yield steps until this rank's shards end, and empty ones for as long as others go on."""
        rank, size = self._topology.rank, self._topology.size
        if self._reader is None:
            self._reader = self._open(rank=rank, size=size, consumed=self._consumed)
        if self._reader.is_empty and first_step == 0:
            self._reader = self._open(rank=rank, size=size)
        per_epoch = self._config.steps_per_epoch
        limits = [limit for limit in (max_steps, per_epoch and per_epoch - first_step) if limit is not None]
        made = self._steps(self._reader, epoch, min(limits) if limits else None)
        with closing(prefetch(made, 1)) as steps:
            for self._consumed, step in steps:
                yield step

    def close_epoch(self, epoch: int, num_steps: int, allreduce_sum: AllReduceSum) -> None:
        """Return nothing: the samples of a stream have no index to count by."""

    def facts(self, epoch: int) -> dict[str, Any]:
        """Return the number of shards, ``None`` where the user leaves it to the first start."""
        return {"num_shards": self._stream.num_shards, "kind": "stream"}

    def position(self, allreduce_sum: AllReduceSum) -> dict[str, Any]:
        """Return the samples consumed of each shard in this pass."""
        mine = np.zeros(self._num_shards, dtype=np.int64)
        owned = slice(self._topology.rank, None, self._topology.size)
        mine[owned] = self._consumed[owned]
        return {"num_shards": self._num_shards, "consumed": allreduce_sum(mine).tolist()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Keep the number of shards that the run began with, and skip what was consumed of each."""
        self._num_shards = Stream(self._stream.make, saved["num_shards"]).count_shards(
            size=self._topology.size, workers=self._config.data_workers
        )
        self._consumed = list(saved["consumed"])

    def _open(self, *, rank: int, size: int, consumed: Sequence[int] | None = None) -> ShardReader:
        return ShardReader(
            self._stream,
            rank=rank,
            size=size,
            num_shards=self._num_shards,
            consumed=consumed or [0] * self._num_shards,
            is_bounded=self._is_bounded,
            moved=self._moved,
        )

    def _steps(
        self, reader: ShardReader, epoch: int, max_steps: int | None
    ) -> Generator[tuple[list[int], SourceStep], None, None]:
        start, stop = share_bounds(self._sizes.global_batch_size, rank=self._topology.rank, size=self._topology.size)
        done = 0
        while max_steps is None or done < max_steps:
            samples = reader.take(stop - start)
            parts = cut_micro_batches(np.arange(len(samples)), batch_size=self._sizes.batch_size)
            batches = [self._batch([samples[i] for i in part], epoch) for part in parts]
            done += 1
            yield list(reader.consumed), SourceStep(batches, is_last=reader.is_empty)

    def _batch(self, taken: list[Taken], epoch: int) -> MicroBatch:
        samples = [one.sample for one in taken]
        if self._augment is not None:
            keys = [[self._config.seed, epoch, one.shard, one.index] for one in taken]
            pairs = zip(samples, keys, strict=True)
            samples = [self._augment(sample, np.random.default_rng(key)) for sample, key in pairs]
        return MicroBatch(narrow(self._collate(samples)), len(samples))


def make_source(
    data: IndexedData | Stream,
    sizes: BatchSizes,
    topology: Topology,
    config: TrainConfig,
    *,
    augment: Augment | None,
    collate: Collate | None,
    moved: Callable[[], None] = lambda: None,
) -> Source:
    """Return the source of ``data``; ``moved`` is called while a stream skips what was used before.

    Raises:
        DataError: It is neither a data set with a length nor a stream.
    """
    if isinstance(data, Stream):
        return StreamSource(data, sizes, topology, config, augment=augment, collate=collate, moved=moved)
    loader = Loader(data, seed=config.seed, augment=augment, collate=collate, workers=config.data_workers)
    return IndexedSource(data, sizes, topology, config, loader)


def length_of(data: IndexedData | Stream, name: str, *, may_stream: bool = True) -> int | None:
    """Return the number of samples, ``None`` for a stream.

    Raises:
        DataError: ``data`` can only be iterated, so ranks could not share it; or it is a dictionary of columns.
    """
    if isinstance(data, Stream):
        if may_stream:
            return None
        raise DataError(
            f"plan: {name} must have len() and [i], got a stream. Read a fixed number of samples into a list: an "
            "evaluation counts every sample exactly once."
        )
    if isinstance(data, Mapping):
        raise DataError(
            f"plan: {name} must have len() and [i], where i is the number of a sample, got a {type(data).__name__}. "
            'Return a list of samples, such as [{"x": row, "y": label} for row, label in zip(x, y)].'
        )
    try:
        if hasattr(data, "__getitem__"):
            return len(data)
    except TypeError:
        pass  # such as a tf.data pipeline without end
    raise DataError(
        f"plan: {name} must have len() and [i], got {type(data).__name__}. Wrap what can only be iterated in "
        "hvdtrain.Stream(make), where make(shard, num_shards) returns the samples of one shard."
    )
