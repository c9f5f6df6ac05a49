from __future__ import annotations

from dataclasses import replace

import pytest

from hvdtrain.stall import Standing, judge, report

SILENCE_S = 5.0


def standing(rank, phase="reduce", **values):
    base = Standing(rank, "host", 7, phase, "job.py:1 in f", is_waiting=phase == "reduce", still_s=30.0, silent_s=0.5)
    return replace(base, **values)


CASES = {
    "one rank in a callback": ([standing(0, "callback"), standing(1)], "rank-only work", 0),
    "one rank without data": ([standing(0), standing(1, "data")], "slow data", 1),
    "one rank in its own loss": ([standing(0), standing(1, "forward and backward"), standing(2)], "rank-only work", 1),
    "one rank is silent": ([standing(0), standing(1, silent_s=20.0), standing(2, "callback")], "dead rank", 1),
    "two busy, one a step behind": ([standing(0, "callback"), standing(1, "callback", step=6)], "slow work", None),
    "busy ones beside a waiting one": (
        [standing(0), standing(1, "callback"), standing(2, "data", step=6)],
        "slow data",
        2,
    ),
    "all in a callback": ([standing(0, "callback"), standing(1, "callback")], "slow work", None),
    "all without data": ([standing(0, "data"), standing(1, "data", still_s=31.0)], "slow data", 1),
    "all in the reduction": ([standing(0), standing(1), standing(2)], "mismatched model", None),
    "a collective of one alone": (
        [standing(0), standing(1, "save", is_waiting=True), standing(2)],
        "rank-only work",
        1,
    ),
    "a collective of one alone, two ranks": (
        [standing(0, "evaluate", is_waiting=True), standing(1)],
        "rank-only work",
        0,
    ),
    "one has left": ([standing(0), standing(1, has_left=True), standing(2)], "dead rank", 1),
    "one has left, silent since": ([standing(0, "callback"), standing(1, has_left=True, silent_s=40.0)],) * 1
    + ("rank-only work", 0),
    "one process alone": ([standing(0, "callback")], "slow work", None),
}


@pytest.mark.parametrize(("standings", "kind", "rank"), CASES.values(), ids=CASES)
def test_a_stall_has_its_verdict(standings, kind, rank):
    verdict = judge(standings, SILENCE_S)
    assert (verdict.kind, verdict.rank) == (kind, rank)
    assert f"Verdict: {kind}" in report(standings, verdict, 20.0).splitlines()[-1]


def test_a_report_tells_rule_ranks_verdict_and_cure():
    standings = [standing(0, "callback", line="job.py:12 in on_step_end"), standing(1)]
    assert report(standings, judge(standings, SILENCE_S), 20.0) == (
        "watchdog: a rank must move within stall_timeout_s=20 s, and none has:\n"
        "  rank 0 on host: step 7, callback for 30 s at job.py:12 in on_step_end\n"
        "  rank 1 on host: step 7, reduce for 30 s at job.py:1 in f, waits for other ranks\n"
        "Verdict: rank-only work: rank 0 alone is in its callback at job.py:12 in on_step_end. "
        "The others wait for rank 0. Do it on every rank, make it shorter, or raise stall_timeout_s."
    )


def test_a_report_of_many_ranks_lists_the_one_behind_and_counts_the_rest():
    standings = [standing(rank, "callback" if rank == 700 else "reduce") for rank in range(1000)]
    lines = report(standings, judge(standings, SILENCE_S), 20.0).splitlines()
    assert len(lines) == 19
    assert lines[16].startswith("  rank 700 on host")
    assert lines[17] == "  984 more: 984 in reduce"
    assert "wait for rank 700" in lines[18]


def test_nobody_is_said_to_wait_when_all_others_have_left():
    standings = [standing(0, "callback"), standing(1, has_left=True)]
    assert "wait for" not in report(standings, judge(standings, SILENCE_S), 20.0)
