from __future__ import annotations

import hashlib

import numpy as np
import pytest

from hvdtrain.batching import (
    BatchSizes,
    Order,
    cut_micro_batches,
    iter_shares,
    resolve_batch_sizes,
    share,
    share_bounds,
)
from hvdtrain.errors import ConfigError


def resolve(size, global_batch_size=None, batch_size=None, passes=None):
    return resolve_batch_sizes(
        size=size, global_batch_size=global_batch_size, batch_size=batch_size, backward_passes_per_step=passes
    )


def lists(parts):
    return [part.tolist() for part in parts]


# ---------------------------------------------------------------- share
SHARES = [
    (0, [[], [], []]),
    (1, [[0], [], []]),
    (2, [[0], [1], []]),
    (3, [[0], [1], [2]]),
    (4, [[0, 1], [2], [3]]),
    (5, [[0, 1], [2, 3], [4]]),
    (6, [[0, 1], [2, 3], [4, 5]]),
    (7, [[0, 1, 2], [3, 4], [5, 6]]),
]


@pytest.mark.parametrize(("num_samples", "parts"), SHARES)
def test_share_of_3_ranks_gives_the_remainder_to_the_first(num_samples, parts):
    assert lists(share(np.arange(num_samples), rank=rank, size=3) for rank in range(3)) == parts


def test_share_of_one_rank_is_the_whole_batch():
    assert share(np.array([7, 3, 5]), rank=0, size=1).tolist() == [7, 3, 5]


def test_share_takes_positions_of_the_batch_and_not_its_values():
    assert lists(share(np.array([9, 2, 4, 8, 6]), rank=rank, size=2) for rank in range(2)) == [[9, 2, 4], [8, 6]]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("num_samples", [0, 1, 5, 16, 33])
def test_share_bounds_cover_once_and_differ_by_at_most_one(num_samples, size):
    bounds = [share_bounds(num_samples, rank=rank, size=size) for rank in range(size)]
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == num_samples
    lengths = {stop - start for start, stop in bounds}
    assert max(lengths) - min(lengths) <= 1


# ---------------------------------------------------------------- micro-batches
@pytest.mark.parametrize(
    ("num_rows", "batch_size", "parts"),
    [(0, 2, []), (1, 2, [[0]]), (2, 2, [[0, 1]]), (5, 2, [[0, 1], [2, 3], [4]]), (3, 8, [[0, 1, 2]])],
)
def test_micro_batches_hold_at_most_batch_size(num_rows, batch_size, parts):
    assert lists(cut_micro_batches(np.arange(num_rows), batch_size=batch_size)) == parts


# ---------------------------------------------------------------- batch arithmetic
COMBINATIONS = [
    # ranks, global, batch, passes -> global, batch, passes
    (1, 64, None, None, (64, 64, 1)),
    (2, 64, None, None, (64, 32, 1)),
    (3, 64, None, None, (64, 22, 1)),
    (2, 64, None, 4, (64, 8, 4)),
    (3, 64, None, 4, (64, 6, 4)),
    (2, 100, 16, None, (100, 16, 4)),
    (2, 64, 16, None, (64, 16, 2)),
    (1, 64, 100, None, (64, 100, 1)),
    (2, None, 16, None, (32, 16, 1)),
    (2, None, 16, 4, (128, 16, 4)),
    (3, None, 5, 2, (30, 5, 2)),
    (2, 64, 16, 2, (64, 16, 2)),
    (2, 64, 16, 4, (64, 8, 4)),
    (4, 2, None, None, (2, 1, 1)),
    (4, 2, 8, None, (2, 8, 1)),
]


@pytest.mark.parametrize(("size", "global_batch_size", "batch_size", "passes", "expected"), COMBINATIONS)
def test_batch_sizes_follow_from_what_is_given(size, global_batch_size, batch_size, passes, expected):
    assert resolve(size, global_batch_size, batch_size, passes) == BatchSizes(*expected)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_global_batch_size_given_stays_for_every_number_of_ranks(size):
    sizes = resolve(size, 100, 7)
    assert sizes.global_batch_size == 100
    assert sizes.batch_size * sizes.backward_passes_per_step * size >= 100


@pytest.mark.parametrize("passes", [None, 3])
def test_batch_sizes_without_a_batch_raise(passes):
    with pytest.raises(ConfigError) as caught:
        resolve(2, passes=passes)
    assert str(caught.value) == (
        "plan: the batch must be given, got neither global_batch_size nor batch_size. "
        "Set global_batch_size, so that the number of ranks changes nothing."
    )


@pytest.mark.parametrize(
    ("size", "global_batch_size", "batch_size", "passes", "numbers"),
    [(2, 100, 16, 3, "16 x 3 x 2 = 96 for 100"), (1, 9, 4, 2, "4 x 2 x 1 = 8 for 9")],
)
def test_batch_sizes_that_contradict_raise_with_the_arithmetic(size, global_batch_size, batch_size, passes, numbers):
    with pytest.raises(ConfigError) as caught:
        resolve(size, global_batch_size, batch_size, passes)
    assert str(caught.value) == (
        "plan: batch_size x backward_passes_per_step x ranks must reach global_batch_size, got "
        f"{numbers}. Leave one of the three out, and it follows from the others."
    )


# ---------------------------------------------------------------- order
@pytest.mark.parametrize("num_samples", [1, 2, 10, 1000])
def test_order_is_a_permutation(num_samples):
    rows = Order(num_samples, seed=3, epoch=2).rows(0, num_samples)
    assert rows.dtype == np.int64
    assert sorted(rows.tolist()) == list(range(num_samples))


def test_order_is_numpys_pcg64_permutation_of_seed_and_epoch():
    drawn = np.random.Generator(np.random.PCG64([5, 2])).permutation(np.arange(50, dtype=np.uint32))
    assert Order(50, seed=5, epoch=2).rows(0, 50).tolist() == drawn.tolist()


def test_order_repeats_for_the_same_seed_and_epoch_and_moves_with_either():
    first, again, epoch, seed = (
        Order(100, seed=s, epoch=e).rows(0, 100).tolist() for s, e in [(1, 1), (1, 1), (1, 2), (2, 1)]
    )
    assert again == first
    assert epoch != first
    assert seed != first
    assert seed != epoch


def test_order_without_shuffle_counts_up():
    assert Order(10, seed=1, epoch=1, shuffle=False).rows(2, 6).tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 1), (3, 9), (9, 10), (0, 10), (10, 10)])
@pytest.mark.parametrize("block_samples", [3, 4, 10, 64])
def test_rows_between_two_positions_are_that_part_of_all(start, stop, block_samples):
    def order():
        return Order(10, seed=7, epoch=3, block_samples=block_samples)

    assert order().rows(start, stop).tolist() == order().rows(0, 10).tolist()[start:stop]


def test_rows_asked_for_in_any_sequence_are_the_same():
    order = Order(10, seed=7, epoch=3, block_samples=3)
    whole = order.rows(0, 10).tolist()
    assert [order.rows(start, start + 2).tolist() for start in (8, 0, 4, 2, 6)] == [
        whole[start : start + 2] for start in (8, 0, 4, 2, 6)
    ]


@pytest.mark.parametrize("block_samples", [1, 3, 4, 5, 9])
def test_order_in_blocks_is_a_permutation(block_samples):
    rows = Order(10, seed=7, epoch=3, block_samples=block_samples).rows(0, 10)
    assert sorted(rows.tolist()) == list(range(10))


def test_order_in_blocks_keeps_each_block_together():
    rows = Order(12, seed=7, epoch=3, block_samples=4).rows(0, 12)
    assert sorted(sorted(block) for block in (rows.reshape(3, 4) // 4).tolist()) == [[0] * 4, [1] * 4, [2] * 4]


def test_order_in_blocks_moves_blocks_with_the_epoch():
    first_blocks = {int(Order(40, seed=0, epoch=e, block_samples=4).rows(0, 1)[0]) // 4 for e in range(20)}
    assert len(first_blocks) > 3


def test_digest_is_that_of_the_positions():
    order = Order(10, seed=7, epoch=3)
    assert order.digest() == hashlib.sha256(order.rows(0, 10).astype("<i8").tobytes()).hexdigest()


def test_digest_differs_between_epochs():
    assert Order(10, seed=7, epoch=3).digest() != Order(10, seed=7, epoch=4).digest()


# ---------------------------------------------------------------- shares of an epoch
SIZES = BatchSizes(4, 1, 2)


def steps_of(rank, *, size, num_samples=7, **limits):
    order = Order(num_samples, seed=0, epoch=1, shuffle=False)
    return [lists(step) for step in iter_shares(order, SIZES, rank=rank, size=size, **limits)]


def test_iter_shares_gives_every_rank_the_same_number_of_steps_and_a_short_last_one():
    assert steps_of(0, size=2) == [[[0], [1]], [[4], [5]]]
    assert steps_of(1, size=2) == [[[2], [3]], [[6]]]


def test_iter_shares_with_fewer_samples_than_ranks_yields_an_empty_step():
    assert [steps_of(rank, size=3, num_samples=2) for rank in range(3)] == [[[[0]]], [[[1]]], [[]]]


def test_iter_shares_between_two_steps_yields_those():
    assert steps_of(0, size=1, num_samples=9, first_step=1, stop_step=2) == [[[4], [5], [6], [7]]]


def test_iter_shares_stops_at_the_end_of_the_data():
    assert steps_of(0, size=1, num_samples=5, first_step=1, stop_step=9) == [[[4]]]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_iter_shares_over_all_ranks_hold_each_id_once(size):
    order = Order(23, seed=4, epoch=9)
    taken = [
        int(row)
        for rank in range(size)
        for step in iter_shares(order, BatchSizes(6, 2, 3), rank=rank, size=size)
        for part in step
        for row in part
    ]
    assert sorted(taken) == list(range(23))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_iter_shares_joined_over_ranks_are_the_global_batches(size):
    order = Order(23, seed=4, epoch=9)
    ranks = [list(iter_shares(order, BatchSizes(6, 2, 3), rank=rank, size=size)) for rank in range(size)]
    joined = [[int(row) for parts in step for part in parts for row in part] for step in zip(*ranks, strict=True)]
    whole = order.rows(0, 23).tolist()
    assert joined == [whole[0:6], whole[6:12], whole[12:18], whole[18:23]]
