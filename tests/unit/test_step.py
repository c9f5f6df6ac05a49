from __future__ import annotations

import math

import pytest

from hvdtrain.step import STEP_FIELDS, StepResult, StepVotes, clip_factor


def test_votes_vector_stands_in_the_order_of_the_fields():
    vector = StepVotes(num_samples=3, num_passes=2, stop=True, end=False, save=True).vector(1.5, 6.0)
    assert dict(zip(STEP_FIELDS, vector, strict=True)) == {
        "loss_sum": 1.5,
        "weight_sum": 6.0,
        "num_samples": 3.0,
        "num_passes": 2.0,
        "stop_votes": 1.0,
        "end_votes": 0.0,
        "save_votes": 1.0,
        "num_shares": 1.0,
        "share_norms": 0.0,
    }


def test_votes_vector_ends_with_the_squared_norm_per_sample():
    assert StepVotes(num_samples=3, num_passes=2).vector(1.5, 6.0, 6.0)[-1] == 12.0
    assert StepVotes(num_samples=0, num_passes=0).vector(0.0, 0.0, 0.0)[-2:] == [0.0, 0.0]


def test_votes_tail_is_what_is_known_before_the_forward_pass():
    votes = StepVotes(num_samples=3, num_passes=2, end=True)
    assert votes.tail() == [3.0, 2.0, 0.0, 1.0, 0.0, 1.0]
    assert len(votes.tail()) == len(STEP_FIELDS) - 3
    assert all(type(value) is float for value in votes.tail())


def test_result_of_summed_vectors_holds_the_global_batch():
    vectors = [
        StepVotes(num_samples=3, num_passes=2, stop=True).vector(1.5, 6.0, 3.0),
        StepVotes(num_samples=0, num_passes=0, end=True, save=True).vector(0.0, 0.0),
        StepVotes(num_samples=2, num_passes=1, stop=True, end=True).vector(0.25, 4.0, 4.0),
    ]
    sums = [sum(column) for column in zip(*vectors, strict=True)]
    assert StepResult.from_sums(sums, 0.5) == StepResult(1.75, 10.0, 5, 0.5, 2, 2, 1, {}, 2, 11.0)


def test_result_reads_counts_as_whole_numbers_and_leaves_what_an_adapter_appends():
    result = StepResult.from_sums([1.0, 2.0, 2.9999, 1.0, 0.9999, 2.0001, 0.9998, 3.0001, 2.5, 77.0, 88.0], 0.0)
    assert (result.num_samples, result.stop_votes, result.end_votes, result.save_votes) == (3, 1, 2, 1)
    assert (result.num_shares, result.share_norms) == (3, 2.5)


@pytest.mark.parametrize(
    ("loss_sum", "grad_norm", "is_finite"),
    [(1.0, 1.0, True), (math.nan, 1.0, False), (1.0, math.inf, False), (-math.inf, 0.0, False), (1.0, math.nan, False)],
)
def test_result_is_finite_when_loss_and_gradient_are(loss_sum, grad_norm, is_finite):
    assert StepResult(loss_sum, 1.0, 1, grad_norm, 0, 0).is_finite is is_finite


@pytest.mark.parametrize(
    ("grad_norm", "clip_norm", "expected"),
    [
        (5.0, None, 1.0),
        (5.0, 1.0, 1.0 / 5.000001),
        (0.5, 1.0, 1.0),
        (0.0, 1.0, 1.0),
        (1.0, 1.0, 1.0 / 1.000001),
    ],
)
def test_clip_factor_is_torchs(grad_norm, clip_norm, expected):
    assert clip_factor(grad_norm, clip_norm) == expected
