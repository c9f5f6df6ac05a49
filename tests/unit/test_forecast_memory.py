from __future__ import annotations

import pytest

from hvdtrain.forecast.line import Line
from hvdtrain.forecast.memory import Fit, MemoryParts, fit_batch, memory_parts, reduction_bytes, sharding_saves
from hvdtrain.model_size import ModelSize

MODEL = ModelSize(num_parameters=100, num_tensors=2, weights=400, gradients=400, slots=800)


def test_parts_add_up_to_what_was_measured():
    parts = memory_parts(MODEL, Line(5000.0, 10.0), 32, reduction=400)
    assert parts == MemoryParts(400, 400, 800, 400, activations=320, others=3000)
    assert sum(vars(parts).values()) == Line(5000.0, 10.0).at(32)


@pytest.mark.parametrize(
    ("framework", "num_ranks", "sent", "threshold", "num_bytes"),
    [
        ("torch", 2, 400, "", 400),
        ("torch", 2, 10**9, "", 512 * 2**10),
        ("torch", 2, 400, "100", 100),
        ("torch", 2, 400, "nonsense", 400),
        ("torch", 1, 400, "", 0),  # one rank sums nothing
        ("tensorflow", 1, 400, "", 0),
        ("tensorflow", 8, 400, "", 800),  # the sums have memory of their own
    ],
)
def test_what_summing_over_ranks_needs(framework, num_ranks, sent, threshold, num_bytes):
    environ = {"HOROVOD_FUSION_THRESHOLD": threshold}
    assert reduction_bytes(framework, num_ranks, sent, environ) == num_bytes


@pytest.mark.parametrize(
    ("limit", "share", "batch_size", "fit"),
    [
        (1000.0, 64, 64, Fit(450, 64, 1)),  # all fits
        (150.0, 64, 64, Fit(25, 22, 3)),  # 25 fit: 3 passes, of 22, 22 and 20
        (150.0, 64, 16, Fit(25, 16, 4)),  # the planned batch fits and is kept
        (102.0, 3, 3, Fit(1, 1, 3)),
        (101.9, 3, 3, Fit(0, 0, 0)),  # not even one
        (50.0, 3, 3, Fit(0, 0, 0)),  # not even none
    ],
)
def test_share_is_cut_into_the_fewest_equal_parts_that_fit(limit, share, batch_size, fit):
    assert fit_batch(Line(100.0, 2.0), limit, share, batch_size) == fit


def test_samples_that_cost_nothing_all_fit():
    assert fit_batch(Line(100.0, 0.0), 150.0, 64, 64) == Fit(float("inf"), 64, 1)


@pytest.mark.parametrize(("num_ranks", "saved"), [(1, 0), (2, 400), (3, 533), (4, 600), (800, 799)])
def test_sharding_leaves_each_rank_one_part_of_the_slots(num_ranks, saved):
    assert sharding_saves(800, num_ranks) == saved
