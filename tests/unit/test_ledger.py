from __future__ import annotations

import numpy as np
import pytest

from hvdtrain.ledger import Ledger, digest_rows

MASK = (1 << 64) - 1


def alone(values):
    return values


def ledger_of(rows, num_samples=6):
    ledger = Ledger(num_samples)
    for row in rows:
        ledger.add(np.array([row], dtype=np.int64))
    return ledger


def mix(number):
    """splitmix64's finaliser in whole numbers."""
    number = (number + 0x9E3779B97F4A7C15) & MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)


@pytest.mark.parametrize(
    ("used", "expected_rows", "counts"),
    [
        ([4, 0, 3, 1, 5, 2], range(6), (6, 0, 0)),
        ([0, 1, 2, 3, 4], range(6), (5, 0, 1)),
        ([0, 1, 2, 3, 4, 5, 5], range(6), (5, 1, 0)),
        ([0, 1, 2, 3, 4, 4], range(6), (4, 1, 1)),
        ([], range(6), (0, 0, 6)),
        ([2, 0], [0, 2], (2, 0, 0)),
        ([2, 0, 5], [0, 2], (2, 1, 0)),
        ([2, 5], [0, 2], (1, 1, 1)),
        ([3, 3, 3], [3], (0, 1, 0)),
        ([], [], (0, 0, 0)),
    ],
)
def test_ledger_tells_once_more_and_never(used, expected_rows, counts):
    expected = np.array(list(expected_rows), dtype=np.int64)
    assert ledger_of(used).close(expected, alone) == dict(zip(("once", "more", "never"), counts, strict=True))


def close_over_ranks(shares, num_samples=6):
    """Close the ledgers of several ranks, summing the same array of each, as the ranks would."""
    answers = []
    for here in range(len(shares)):
        ledgers = [ledger_of(rows, num_samples) for rows in shares]

        def total(values, ledgers=ledgers, here=here):
            others = [
                other._digest if values.dtype == np.uint64 else other._counts
                for rank, other in enumerate(ledgers)
                if rank != here
            ]
            return np.sum([values, *others], axis=0, dtype=values.dtype)

        answers.append(ledgers[here].close(np.arange(num_samples), total))
    return answers


def test_ledger_over_ranks_adds_up():
    assert close_over_ranks([[0, 1], [2, 3], [4, 5]]) == [{"once": 6, "more": 0, "never": 0}] * 3


def test_ledger_over_ranks_finds_a_sample_that_two_ranks_used():
    assert close_over_ranks([[0, 1, 2], [2, 3], [4, 5]]) == [{"once": 5, "more": 1, "never": 0}] * 3


def test_ledger_over_ranks_finds_a_sample_that_one_used_in_place_of_another():
    assert close_over_ranks([[0, 1], [2, 2], [4, 5]]) == [{"once": 4, "more": 1, "never": 1}] * 3


def test_ledger_that_goes_on_from_a_digest_closes_the_whole_epoch():
    first = ledger_of([4, 0, 3])
    second = Ledger(6, np.array(first.digest(alone), dtype=np.uint64))
    second.add(np.array([1, 5, 2]))
    assert second.close(np.arange(6), alone) == {"once": 6, "more": 0, "never": 0}


def test_ledger_that_goes_on_and_differs_cannot_tell_how():
    second = Ledger(6, np.array(ledger_of([4, 0, 3]).digest(alone), dtype=np.uint64))
    second.add(np.array([1, 5, 3]))
    assert second.close(np.arange(6), alone) == {"once": None, "more": None, "never": None}


def test_ledger_that_goes_on_leaves_the_digest_it_was_given_alone():
    given = np.array(ledger_of([4]).digest(alone), dtype=np.uint64)
    before = given.tolist()
    Ledger(6, given).add(np.array([1]))
    assert given.tolist() == before


def test_digest_of_a_ledger_is_summed_over_ranks():
    one, other = ledger_of([1, 2]), digest_rows(np.array([0, 3, 5]))
    assert one.digest(lambda mine: mine + other) == digest_rows(np.array([0, 1, 2, 3, 5])).tolist()


def test_digest_is_count_and_two_sums_of_splitmix64():
    rows = [0, 1, 7, 2**40]
    first = [mix(row) for row in rows]
    expected = [4, sum(first) & MASK, sum(mix(value) for value in first) & MASK]
    assert digest_rows(np.array(rows, dtype=np.int64)).tolist() == expected


def test_digest_ignores_the_order_and_sees_another_row():
    one, two, three = (digest_rows(np.array(rows)).tolist() for rows in ([1, 2, 3], [3, 1, 2], [1, 2, 4]))
    assert one == two
    assert one != three


def test_digest_sees_rows_of_the_same_sum():
    assert digest_rows(np.array([1, 4])).tolist() != digest_rows(np.array([2, 3])).tolist()


def test_ledger_takes_micro_batches_as_one_by_one():
    whole = Ledger(6)
    whole.add(np.array([5, 1, 1, 0]))
    assert whole.close(np.arange(6), alone) == ledger_of([5, 1, 1, 0]).close(np.arange(6), alone)
