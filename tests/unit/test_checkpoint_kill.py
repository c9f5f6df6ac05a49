"""A process killed with signal 9 at every stage of a commit: a whole checkpoint is found, and none is lost."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.harness import run_command
from tests.unit.killed_commits import SITUATIONS

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    finished = run_command(
        [sys.executable, "-m", "tests.unit.killed_commits"],
        timeout_s=50,
        env={"PYTHONPATH": str(PROJECT)},
        cwd=tmp_path_factory.mktemp("killed"),
    )
    assert finished.returncode == 0, finished.output
    return [json.loads(line) for line in finished.stdout.splitlines()]


@pytest.mark.parametrize("situation", SITUATIONS)
def test_whatever_stage_is_killed_a_whole_checkpoint_is_found(rows, situation):
    told = [row for row in rows if row["situation"] == situation]
    assert [row for row in told if "error" in row or row["differ"]] == []
    assert {tuple(row["found"]) for row in told} <= SITUATIONS[situation][2]
    # Nothing half written is left where the run goes on.
    assert {name for row in told for name in row["names"]} <= {"step-00000001", "step-00000002"}
    assert [row["is_killed"] for row in told] == [True] * (len(told) - 1) + [False]


@pytest.mark.parametrize(
    ("situation", "events"),
    [
        # Header and values of both files, their names, the manifest's, the folder's, and the rename.
        ("new", {"os.mkdir": 2, "open": 5, "write": 4, "os.rename": 1}),
        ("replaced", {"os.mkdir": 2, "open": 5, "write": 4, "os.rename": 2}),
        ("pruned", {"os.rename": 1, "os.rmdir": 1, "os.remove": 3}),
        ("resumed", {"os.rename": 1}),
    ],
)
def test_every_stage_is_killed(rows, situation, events):
    seen = [row["event"] for row in rows if row["situation"] == situation and row["is_killed"]]
    assert {event: seen.count(event) for event in events if seen.count(event) < events[event]} == {}


def test_killed_commit_leaves_the_old_until_the_new_is_whole(rows):
    told = [row["found"][1] for row in rows if row["situation"] == "replaced"]
    assert told == sorted(told)
    assert set(told) == {1.0, 2.0}
