"""kill -9 of either rank or the launcher, at six points, in both frameworks: nothing hangs, lies or is lost.

36 kills on two ranks, each resumed in one of three ways in rotation; ``HVDTRAIN_FULL=1`` resumes each in all of them.
"""

from __future__ import annotations

import pytest

from tests.faults.equality import compare_bits, compare_numbers
from tests.faults.lab import FRAMEWORKS, KILLS, POINTS, TARGETS, WAYS, Kill, count
from tests.harness import require


def test_rotation_resumes_every_point_and_every_target_in_every_way():
    if all(len(kill.ways) == 1 for kill in KILLS):
        for framework in FRAMEWORKS:
            cells = [kill for kill in KILLS if kill.framework == framework]
            assert {(kill.point, kill.ways[0]) for kill in cells} == {(p, w) for p in POINTS for w in WAYS}
            assert {(kill.target, kill.ways[0]) for kill in cells} == {(t, w) for t in TARGETS for w in WAYS}
    sizes = {kill.start_of("other ranks") for kill in KILLS for way in kill.ways if way == "other ranks"}
    assert sizes == {(framework, size) for framework in FRAMEWORKS for size in (1, 3)}


def test_count_adds_up_the_labs_of_all_processes():
    first = {"ended_s": {"kill": [1.0, 2.0]}, "problems": [[], ["hang"]], "resumed": [["same ranks", False, 0.0, 0.0]]}
    second = {
        "ended_s": {"kill": [1.5], "freeze": [9.0]},
        "problems": [["hang", "checkpoint"]],
        "resumed": [["other ranks", True, 1e-3, 2e-8], ["other ranks", False, 1e-8, 3e-7]],
    }
    assert count([]) == []
    assert count([first, second]) == [
        "longest from a fault to the return of the launcher: freeze 9.0 s, kill 2.0 s",
        "3 kills: 2 hangs, 0 wrong exit codes, 0 with processes left, 1 with lost or unreadable checkpoints, "
        "0 that did not come",
        "1 resumed, same ranks: 0 unequal (same bits)",
        "2 resumed, other ranks: 1 unequal (loss 1.0e-03, weights and slots 3.0e-07)",
    ]


@pytest.mark.parametrize("kill", KILLS, ids=str)
def test_killed_job_ends_at_once_and_leaves_whole_checkpoints(lab, kill: Kill):
    require(kill.framework)
    problems = lab.kill(kill)
    assert not problems, "\n".join(f"{kind}: {text[-8000:]}" for kind, text in problems.items())


@pytest.mark.parametrize(("kill", "way"), [(kill, way) for kill in KILLS for way in kill.ways], ids=str)
def test_resumed_run_is_the_undisturbed_run(lab, kill: Kill, way: str):
    for framework in {kill.framework, kill.start_of(way)[0]}:
        require(framework)
    difference = lab.resume(kill, way)
    assert difference.fault is None, lab.told(kill, way)[-8000:]
    checkpoints = lab.run_dir(kill, way) / "checkpoints"
    said = f"no checkpoint in {checkpoints}, starting fresh"
    if kill.newest is not None:
        said = f"continuing from step {kill.newest} ({checkpoints}/step-{kill.newest:08d})"
    assert lab.told(kill, way).count(f"resume: {said}\n") == 1, lab.told(kill, way)[-8000:]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("compare", [compare_bits, compare_numbers])
def test_run_that_lost_one_batch_is_not_equal(lab, framework, compare):
    require(framework)
    undisturbed = lab.run(framework, "undisturbed")
    assert compare(undisturbed, undisturbed).fault is None
    assert compare(undisturbed, lab.run(framework, "weightless")).fault is not None
