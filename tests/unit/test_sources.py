from __future__ import annotations

import threading
from contextlib import closing
from itertools import islice

import numpy as np
import pytest

from hvdtrain.batching import BatchSizes, Order
from hvdtrain.config import TrainConfig
from hvdtrain.errors import ConfigError, DataError
from hvdtrain.ledger import digest_rows
from hvdtrain.sources import IndexedSource, StreamSource, length_of, make_source
from hvdtrain.stream import Stream
from hvdtrain.topology import Topology


class Squares:
    def __init__(self, num_samples=7):
        self.num_samples = num_samples

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        return index**2


def alone(values):
    return values


def source_of(data, rank=0, size=1, augment=None, **settings):
    config = TrainConfig(**{"global_batch_size": 4, "shuffle": False, **settings})
    return make_source(data, BatchSizes(4, 1, 4), Topology(rank=rank, size=size), config, augment=augment, collate=None)


def steps_of(source, epoch=1, first_step=0, max_steps=None, limit=20):
    """Return per step the samples of its micro-batches and whether it is the last; at most ``limit``."""
    with closing(source.iter_epoch(epoch, first_step=first_step, max_steps=max_steps)) as steps:
        return [([b.data.tolist() for b in step.micro_batches], step.is_last) for step in islice(steps, limit)]


def ids(num_samples, num_shards=None):
    return Stream(lambda shard, num_shards: range(shard, num_samples, num_shards), num_shards)


# ---------------------------------------------------------------- with a length
def test_indexed_source_yields_this_ranks_share_and_says_which_is_last():
    assert steps_of(source_of(Squares(), 0, 2)) == [([[0], [1]], False), ([[16], [25]], True)]
    assert steps_of(source_of(Squares(), 1, 2)) == [([[4], [9]], False), ([[36]], True)]


def test_indexed_source_has_empty_shares_where_ranks_outnumber_samples():
    found = [steps_of(source_of(Squares(2), rank, 3)) for rank in range(3)]
    assert found == [[([[0]], True)], [([[1]], True)], [([], True)]]


@pytest.mark.parametrize(
    ("first_step", "max_steps", "expected"),
    [(1, None, [([[16], [25], [36]], True)]), (0, 1, [([[0], [1], [4], [9]], False)]), (2, None, []), (0, 0, [])],
)
def test_indexed_source_begins_and_ends_where_told(first_step, max_steps, expected):
    assert steps_of(source_of(Squares()), first_step=first_step, max_steps=max_steps) == expected


def test_indexed_source_follows_the_order_of_the_epoch():
    source = source_of(Squares(), shuffle=True, seed=3)
    for epoch in (1, 2):
        order = Order(7, seed=3, epoch=epoch).rows(0, 7)
        found = [value for batches, _ in steps_of(source, epoch) for (value,) in batches]
        assert found == [int(row) ** 2 for row in order]


@pytest.mark.parametrize(("num_samples", "expected"), [(7, [0, 1]), (1, [0, 0])])
def test_indexed_probe_is_two_samples_as_they_are(num_samples, expected):
    source = source_of(Squares(num_samples), augment=lambda sample, rng: sample + rng.random())
    assert source.probe().data.tolist() == expected


def test_indexed_ledger_tells_of_the_steps_done():
    source = source_of(Squares())
    steps_of(source, max_steps=1)
    assert source.close_epoch(1, 1, alone) == {"once": 4, "more": 0, "never": 0}
    assert source.close_epoch(1, 2, alone) == {"once": 4, "more": 0, "never": 3}
    steps_of(source)
    assert source.close_epoch(1, 2, alone) == {"once": 7, "more": 0, "never": 0}


@pytest.mark.parametrize(("epoch", "order_of"), [(2, 2), (0, 1)])
def test_indexed_facts_are_length_and_order(epoch, order_of):
    source = source_of(Squares(), shuffle=True, seed=3)
    digest = Order(7, seed=3, epoch=order_of).digest()
    assert source.facts(epoch) == {"kind": "indexed", "num_samples": 7, "order_digest": digest}


def test_indexed_position_is_the_digest_of_the_samples_used():
    source = source_of(Squares())
    steps_of(source, max_steps=1)
    assert source.position(alone) == {"ledger_digest": digest_rows(np.arange(4)).tolist()}
    assert source.position(lambda digest: digest + digest)["ledger_digest"][0] == 8


def test_indexed_source_that_goes_on_closes_the_whole_epoch():
    first, second = source_of(Squares()), source_of(Squares())
    steps_of(first, max_steps=1)
    second.restore(first.position(alone))
    assert steps_of(second, first_step=1) == [([[16], [25], [36]], True)]
    assert second.close_epoch(1, 2, alone) == {"once": 7, "more": 0, "never": 0}
    steps_of(second, epoch=2)
    assert second.close_epoch(2, 2, alone) == {"once": 7, "more": 0, "never": 0}


def test_indexed_source_that_goes_on_counts_what_was_used_before_on_the_root_alone():
    saved = {"ledger_digest": digest_rows(np.arange(4)).tolist()}
    digests = []
    for rank in range(2):
        source = source_of(Squares(), rank, 2)
        source.restore(saved)
        steps_of(source, first_step=1)
        digests.append(source.position(alone)["ledger_digest"])
    assert [digest[0] for digest in digests] == [4 + 2, 1]
    assert [sum(parts) % 2**64 for parts in zip(*digests, strict=True)] == digest_rows(np.arange(7)).tolist()


# ---------------------------------------------------------------- streams
def test_stream_source_yields_until_its_shards_end_and_then_empty_steps():
    source = source_of(ids(10), 0, 2)
    assert steps_of(source, limit=4) == [([[0], [2]], False), ([[4], [6]], False), ([[8]], True), ([], True)]


def test_stream_source_that_ends_with_a_full_step_says_so_in_it():
    assert steps_of(source_of(ids(8)), limit=2) == [([[0], [1], [2], [3]], False), ([[4], [5], [6], [7]], True)]


def test_stream_source_begins_anew_in_the_next_epoch():
    source = source_of(ids(4))
    assert [steps_of(source, epoch, limit=1) for epoch in (1, 2)] == [[([[0], [1], [2], [3]], True)]] * 2


def test_stream_source_with_steps_per_epoch_goes_on_in_the_next_epoch():
    source = source_of(ids(20), steps_per_epoch=2)
    taken = [[value for batches, _ in steps_of(source, epoch) for (value,) in batches] for epoch in (1, 2)]
    assert taken == [list(range(8)), list(range(8, 16))]


@pytest.mark.parametrize(
    ("first_step", "max_steps", "num_steps"), [(0, None, 3), (0, 2, 2), (1, None, 2), (1, 1, 1), (0, 9, 3)]
)
def test_stream_source_ends_at_the_nearer_limit(first_step, max_steps, num_steps):
    source = source_of(ids(100), steps_per_epoch=3)
    assert len(steps_of(source, first_step=first_step, max_steps=max_steps)) == num_steps


@pytest.mark.parametrize("workers", [0, 2])
def test_stream_source_reads_each_id_once_over_ranks(workers):
    taken = [
        value
        for rank in range(2)
        for batches, _ in steps_of(source_of(ids(13), rank, 2, data_workers=workers), limit=8)
        for (value,) in batches
    ]
    assert sorted(taken) == list(range(13))


def test_stream_probe_uses_nothing_up():
    source = source_of(ids(6))
    assert source.probe().data.tolist() == [0, 1]
    assert steps_of(source, limit=1)[0][0] == [[0], [1], [2], [3]]


def test_stream_probe_of_one_sample_shows_it_twice():
    assert source_of(ids(1)).probe().data.tolist() == [0, 0]


def test_stream_probe_of_an_empty_stream_raises():
    with pytest.raises(DataError) as caught:
        source_of(ids(0)).probe()
    assert str(caught.value) == (
        "plan: train_data must hold at least 1 sample, got an empty stream. Check the path or the filter."
    )


@pytest.mark.parametrize("num_shards", [None, 4])
def test_stream_facts_are_the_shards_that_the_user_asked_for(num_shards):
    assert source_of(ids(8, num_shards), 0, 2).facts(1) == {"kind": "stream", "num_shards": num_shards}


def test_stream_position_counts_the_steps_done_and_not_those_prepared():
    source = source_of(ids(100, 4), 1, 2)
    with closing(source.iter_epoch(1, first_step=0, max_steps=None)) as steps:
        next(steps)
        next(steps)
        assert source.position(alone) == {"num_shards": 4, "consumed": [0, 2, 0, 2]}


def test_stream_position_sums_over_ranks():
    source = source_of(ids(100, 4), 0, 2)
    steps_of(source, limit=1)
    others = np.array([0, 5, 0, 6])
    assert source.position(lambda mine: mine + others)["consumed"] == [1, 5, 1, 6]


def restored(data, consumed, num_shards=4, **more):
    source = source_of(data, **more)
    source.restore({"num_shards": num_shards, "consumed": consumed})
    return source


def test_stream_that_goes_on_skips_what_each_shard_gave():
    source = restored(ids(12), [2, 1, 0, 3])
    taken = [value for batches, _ in steps_of(source, first_step=1, limit=2) for (value,) in batches]
    assert sorted(taken) == [2, 5, 6, 8, 9, 10]  # all but 0 and 4, 1, and 3, 7 and 11


def test_stream_that_goes_on_keeps_its_number_of_shards_on_more_ranks():
    taken = [
        value
        for rank in range(3)
        for batches, _ in steps_of(restored(ids(13), [1, 1, 1, 1], rank=rank, size=3), first_step=1, limit=6)
        for (value,) in batches
    ]
    assert sorted(taken) == list(range(4, 13))


def test_stream_that_goes_on_at_the_end_of_a_pass_begins_anew():
    source = restored(ids(6), [2, 2, 1, 1])
    assert steps_of(source, epoch=2, limit=1) == [([[0], [1], [2], [3]], False)]


def test_stream_that_goes_on_with_more_ranks_than_shards_raises():
    with pytest.raises(ConfigError) as caught:
        restored(ids(6), [0, 0], num_shards=2, size=3)
    assert str(caught.value) == (
        "stream: num_shards must be at least the number of ranks, got 2 for 3 ranks. "
        "Give the stream more shards, or start fewer ranks."
    )


@pytest.mark.parametrize("steps_before", [1, 2, 3, 4])
def test_stream_that_goes_on_within_a_turn_yields_what_the_undisturbed_one_does(steps_before):
    # Batches of 4 out of 3 shards: after one step the next sample is that of shard 1.
    whole = steps_of(source_of(ids(20, 3)), limit=5)
    first = source_of(ids(20, 3))
    steps_of(first, limit=steps_before)
    second = restored(ids(20, 3), first.position(alone)["consumed"], num_shards=3)
    assert steps_of(second, first_step=steps_before, limit=5 - steps_before) == whole[steps_before:]


def test_stream_that_goes_on_augments_as_the_undisturbed_one_does():
    def augment(sample, rng):
        return rng.integers(1 << 30)

    whole = steps_of(source_of(ids(8, 4), augment=augment), limit=2)
    second = restored(ids(8, 4), [1, 1, 1, 1], augment=augment)
    assert steps_of(second, first_step=1, limit=1) == whole[1:]


def test_stream_has_no_ledger():
    assert source_of(ids(6)).close_epoch(1, 1, alone) is None


def test_stream_augment_draws_anew_for_every_sample():
    source = source_of(ids(8), augment=lambda sample, rng: rng.integers(1 << 30))
    drawn = [value for batches, _ in steps_of(source, limit=2) for (value,) in batches]
    assert drawn == [np.random.default_rng([0, 1, 0, place]).integers(1 << 30) for place in range(8)]


@pytest.mark.parametrize("data", [Squares(), ids(100)])
def test_source_left_early_leaves_no_thread(data):
    before = threading.active_count()
    steps_of(source_of(data, data_workers=2), limit=1)
    assert threading.active_count() == before


# ---------------------------------------------------------------- kinds of data
def test_make_source_knows_both_kinds():
    assert isinstance(source_of(Squares()), IndexedSource)
    assert isinstance(source_of(ids(5)), StreamSource)


def test_length_of_both_kinds():
    assert (length_of(Squares(), "train_data"), length_of(ids(5), "train_data")) == (7, None)


class WithoutEnd:
    def __getitem__(self, index):
        return index

    def __len__(self):
        raise TypeError("the data set is infinite")


@pytest.mark.parametrize(("data", "name"), [(iter([1]), "list_iterator"), ({1}, "set"), (WithoutEnd(), "WithoutEnd")])
def test_length_of_what_can_only_be_iterated_raises(data, name):
    with pytest.raises(DataError) as caught:
        length_of(data, "eval_data")
    assert str(caught.value) == (
        f"plan: eval_data must have len() and [i], got {name}. Wrap what can only be iterated in "
        "hvdtrain.Stream(make), where make(shard, num_shards) returns the samples of one shard."
    )


def test_length_of_a_dictionary_of_columns_raises():
    with pytest.raises(DataError, match="where i is the number of a sample, got a dict"):
        length_of({"x": np.zeros((3, 2)), "y": np.zeros(3)}, "train_data")
