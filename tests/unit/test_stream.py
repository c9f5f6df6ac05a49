from __future__ import annotations

import pytest

from hvdtrain.errors import ConfigError, DataError
from hvdtrain.stream import ShardReader, Stream, Taken


def ids(num_samples):
    """Return a stream whose shard ``s`` holds ``s, s + n, ...`` of the ids."""
    return Stream(lambda shard, num_shards: range(shard, num_samples, num_shards))


def reader_of(stream, rank, size, num_shards, *, consumed=None, is_bounded=False):
    return ShardReader(
        stream,
        rank=rank,
        size=size,
        num_shards=num_shards,
        consumed=consumed or [0] * num_shards,
        is_bounded=is_bounded,
    )


def take(reader, num_samples):
    return [one.sample for one in reader.take(num_samples)]


@pytest.mark.parametrize(
    ("num_shards", "size", "workers", "expected"),
    [(None, 2, 0, 2), (None, 2, 1, 2), (None, 2, 3, 6), (8, 3, 2, 8), (3, 3, 9, 3)],
)
def test_count_shards_is_what_is_given_or_ranks_times_workers(num_shards, size, workers, expected):
    assert Stream(lambda shard, num_shards: [], num_shards).count_shards(size=size, workers=workers) == expected


def test_fewer_shards_than_ranks_raise():
    with pytest.raises(ConfigError) as caught:
        Stream(lambda shard, num_shards: [], 2).count_shards(size=3, workers=0)
    assert str(caught.value) == (
        "stream: num_shards must be at least the number of ranks, got 2 for 3 ranks. "
        "Give the stream more shards, or start fewer ranks."
    )


@pytest.mark.parametrize(("size", "num_shards"), [(1, 1), (1, 4), (2, 2), (2, 4), (2, 5), (3, 7)])
def test_each_id_is_read_once_over_ranks_and_shards(size, num_shards):
    taken = [id_ for rank in range(size) for id_ in take(reader_of(ids(23), rank, size, num_shards), 100)]
    assert sorted(taken) == list(range(23))


def test_shards_are_read_in_turn():
    assert take(reader_of(ids(12), 0, 2, 4), 100) == [0, 2, 4, 6, 8, 10]
    assert take(reader_of(ids(12), 1, 2, 4), 100) == [1, 3, 5, 7, 9, 11]


def test_short_shard_leaves_its_turn_to_the_others():
    shards = [["a"], [1, 2, 3], []]
    stream = Stream(lambda shard, num_shards: shards[shard])
    assert take(reader_of(stream, 0, 1, 3), 100) == ["a", 1, 2, 3]


def test_take_goes_on_where_it_stopped():
    reader = reader_of(ids(12), 0, 2, 4)
    assert [take(reader, 2), take(reader, 3), take(reader, 3), take(reader, 1)] == [[0, 2], [4, 6, 8], [10], []]


def test_skipping_what_was_used_is_told_sample_by_sample():
    moves = []
    stream = Stream(lambda shard, num_shards: iter(range(100)), num_shards=2)
    arguments = {"rank": 0, "size": 1, "num_shards": 2, "consumed": [7, 5], "is_bounded": False}
    ShardReader(stream, **arguments, moved=lambda: moves.append(1))
    assert len(moves) == 12


def test_is_empty_is_known_before_the_end_is_met():
    reader = reader_of(ids(3), 0, 1, 1)
    seen = []
    while not reader.is_empty:
        seen += take(reader, 1)
    assert seen == [0, 1, 2]


def test_reader_of_empty_shards_is_empty_at_once():
    assert reader_of(ids(0), 0, 1, 2).is_empty
    assert reader_of(ids(1), 1, 2, 2).is_empty


def test_consumed_counts_what_was_taken_and_not_what_was_read_ahead():
    reader = reader_of(ids(12), 1, 2, 4)
    assert reader.consumed == [0, 0, 0, 0]
    take(reader, 3)
    assert reader.consumed == [0, 2, 0, 1]


def test_take_tells_the_place_of_each_sample():
    reader = reader_of(ids(12), 0, 2, 4, consumed=[1, 0, 1, 0])
    assert reader.take(3) == [Taken(4, 0, 1), Taken(6, 2, 1), Taken(8, 0, 2)]


@pytest.mark.parametrize("taken", range(12))
def test_reader_goes_on_in_the_turn_where_it_stopped(taken):
    # Shard 1 of three gives out after two samples.
    shards = [["a", "b", "c", "d", "e"], [1, 2], ["x", "y", "z", "w"]]
    stream = Stream(lambda shard, num_shards: shards[shard])
    whole = take(reader_of(stream, 0, 1, 3), 100)
    first = reader_of(stream, 0, 1, 3)
    first.take(taken)
    assert take(reader_of(stream, 0, 1, 3, consumed=first.consumed), 100) == whole[taken:]


def test_reader_skips_what_was_consumed():
    reader = reader_of(ids(12), 0, 2, 4, consumed=[2, 0, 1, 0])
    assert sorted(take(reader, 100)) == [6, 8, 10]
    assert reader.consumed == [3, 0, 3, 0]


def test_reader_of_shards_consumed_to_the_end_is_empty():
    assert reader_of(ids(4), 0, 1, 2, consumed=[2, 2]).is_empty


def test_consumed_handed_to_other_ranks_reads_each_id_once():
    first = [reader_of(ids(24), rank, 2, 6) for rank in range(2)]
    taken = [id_ for reader in first for id_ in take(reader, 5)]
    consumed = [sum(counts) for counts in zip(*(reader.consumed for reader in first), strict=True)]
    rest = [id_ for rank in range(3) for id_ in take(reader_of(ids(24), rank, 3, 6, consumed=consumed), 100)]
    assert sorted(taken + rest) == list(range(24))


class Pipeline:
    """Answers as a ``tf.data`` pipeline does."""

    def __init__(self, cardinality):
        self._cardinality = cardinality

    def cardinality(self):
        return self._cardinality

    def as_numpy_iterator(self):
        return iter([7, 8])


def test_pipeline_without_end_raises():
    with pytest.raises(DataError) as caught:
        reader_of(Stream(lambda shard, num_shards: Pipeline(-1)), 0, 1, 1)
    assert str(caught.value) == (
        "stream: a pipeline that repeats without end needs the length of an epoch, got neither steps_per_epoch "
        "nor max_steps. Set one, or take repeat() out of the pipeline."
    )


@pytest.mark.parametrize(("cardinality", "is_bounded"), [(-1, True), (-2, False), (2, False)])
def test_pipeline_that_ends_or_is_bounded_yields_numpy_values(cardinality, is_bounded):
    stream = Stream(lambda shard, num_shards: Pipeline(cardinality))
    assert take(reader_of(stream, 0, 1, 1, is_bounded=is_bounded), 5) == [7, 8]
