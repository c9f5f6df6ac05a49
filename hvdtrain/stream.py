"""Data without length: shards that are read in turn, each by one rank, every sample used once.

The number of shards is fixed when a run first starts, so that a resume on another number of ranks hands whole
shards around and no sample is read twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hvdtrain.errors import ConfigError, DataError

Structure = Any

#: ``tf.data``'s number for a data set that repeats without end.
_INFINITE = -1


@dataclass(frozen=True)
class Stream:
    """Training data that can only be read forwards.

    Attributes:
        make: ``make(shard, num_shards)`` returns an iterable over the samples of one shard, ``0 <= shard <
            num_shards``; together the shards hold every sample once. Called anew for each pass.
        num_shards: Number of shards; ranks x data workers of the first start when not given.
    """

    make: Callable[[int, int], Iterable[Structure]]
    num_shards: int | None = None

    def count_shards(self, *, size: int, workers: int) -> int:
        """Return the number of shards of a first start.

        Raises:
            ConfigError: There are more ranks than shards; some ranks would never have a sample.
        """
        shards = self.num_shards or size * max(1, workers)
        if shards < size:
            raise ConfigError(
                f"stream: num_shards must be at least the number of ranks, got {shards} for {size} ranks. "
                "Give the stream more shards, or start fewer ranks."
            )
        return shards


@dataclass(frozen=True)
class Taken:
    """One sample and its place: the shard, and how many of the shard came before it."""

    sample: Structure
    shard: int
    index: int


class ShardReader:
    """Reads the shards of one rank in turn, one sample from each, and knows one sample ahead whether any is left."""

    def __init__(
        self,
        stream: Stream,
        *,
        rank: int,
        size: int,
        num_shards: int,
        consumed: Sequence[int],
        is_bounded: bool,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the shards ``rank, rank + size, ...`` and skip what was consumed of each.

        Args:
            stream: The data.
            rank: This process.
            size: Number of processes.
            num_shards: Number of shards of the run.
            consumed: Samples already used of every shard, by shard.
            is_bounded: Whether the run ends an epoch by itself; without that an endless shard is refused.
            moved: Called for every sample that is skipped, which may take long.
        """
        self.consumed = list(consumed)
        self._shards = list(range(rank, num_shards, size))
        self._open = {shard: _open(stream, shard, num_shards, is_bounded) for shard in self._shards}
        self._ahead: dict[int, Structure] = {}
        for shard in self._shards:
            for _ in range(self.consumed[shard]):
                next(self._open[shard], None)
                moved()
            self._advance(shard)
        # After a resume, the turn goes on with the first shard that has given the fewest.
        counts = [self.consumed[shard] if shard in self._ahead else math.inf for shard in self._shards]
        self._turn = counts.index(min(counts)) if counts else 0

    @property
    def is_empty(self) -> bool:
        """Whether no shard of this rank has a sample left."""
        return not self._ahead

    def take(self, num_samples: int) -> list[Taken]:
        """Return up to ``num_samples`` samples, fewer only when this rank's shards end."""
        taken: list[Taken] = []
        while len(taken) < num_samples and self._ahead:
            shard = self._shards[self._turn % len(self._shards)]
            self._turn += 1
            if shard in self._ahead:
                taken.append(Taken(self._ahead.pop(shard), shard, self.consumed[shard]))
                self.consumed[shard] += 1
                self._advance(shard)
        return taken

    def _advance(self, shard: int) -> None:
        try:
            self._ahead[shard] = next(self._open[shard])
        except StopIteration:
            return


def _open(stream: Stream, shard: int, num_shards: int, is_bounded: bool) -> Iterator[Structure]:
    made = stream.make(shard, num_shards)
    cardinality = getattr(made, "cardinality", None)
    if callable(cardinality) and int(cardinality()) == _INFINITE and not is_bounded:
        raise DataError(
            "stream: a pipeline that repeats without end needs the length of an epoch, got neither steps_per_epoch "
            "nor max_steps. Set one, or take repeat() out of the pipeline."
        )
    to_numpy = getattr(made, "as_numpy_iterator", None)
    return iter(to_numpy() if callable(to_numpy) else made)
