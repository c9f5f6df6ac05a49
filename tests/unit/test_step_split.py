from __future__ import annotations

from types import SimpleNamespace

import pytest

from hvdtrain.position import Position
from hvdtrain.step_split import StepSplit


def test_the_last_rank_to_reach_the_reduction_waits_for_nobody():
    position = Position()
    split = StepSplit(position)
    position.seconds |= {"data": 9.0, "reduce": 9.0}  # the first step traces
    split.step_done()
    for _ in range(4):
        for phase, seconds in {"data": 0.001, "forward and backward": 0.1, "reduce": 0.03, "update": 0.002}.items():
            position.seconds[phase] += seconds
        split.step_done()
    others = ("far", [1.0, 120.0, 10.0, 2.0, 0.0], 3 << 30)
    told = split.gather(SimpleNamespace(all_gather=lambda mine: [mine, others]))
    assert told["split"] == pytest.approx(
        {"data": 1.0, "forward and backward": 110.0, "communication": 10.0, "waiting": 10.0, "update": 2.0}
        | {"callbacks": 0.0}
    )
    assert [rank["wait_ms"] for rank in told["ranks"]] == pytest.approx([20.0, 0.0])
    far = {"rank": 1, "host": "far", "compute_ms": 120.0, "wait_ms": 0.0, "memory_bytes": 3 << 30}
    assert told["ranks"][1] == far
    assert 10 << 20 < told["ranks"][0]["memory_bytes"] < 3 << 30  # of this very process


def test_a_run_of_no_step_has_a_split_of_nothing():
    told = StepSplit(Position()).gather(SimpleNamespace(all_gather=lambda mine: [mine]))
    assert set(told["split"].values()) == {0.0}


def test_of_many_ranks_those_are_listed_that_the_others_wait_for_and_the_largest():
    waits = [("host", [0.0, 1.0, float(1000 - rank), 0.0, 0.0], 7 + (rank == 5)) for rank in range(1000)]
    ranks = StepSplit(Position()).gather(SimpleNamespace(all_gather=lambda mine: waits))["ranks"]
    assert [entry["rank"] for entry in ranks] == [5, *range(745, 1000)]
