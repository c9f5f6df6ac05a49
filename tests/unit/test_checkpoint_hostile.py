"""Checkpoints that a stranger made: refused with a short message, or read; never run, never a crash, never memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.harness import run_command
from tests.unit.hostile_checkpoints import CASES, READABLE

PROJECT = Path(__file__).parents[2]
WAYS = ("load", "find_latest", "resume", "inspect")
MAX_MESSAGE = 400


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What opening each case led to, in a process that may take little memory."""
    finished = run_command(
        [sys.executable, "-m", "tests.unit.hostile_checkpoints"],
        timeout_s=55,
        env={"PYTHONPATH": str(PROJECT)},
        cwd=tmp_path_factory.mktemp("hostile"),
    )
    assert finished.returncode == 0, finished.output
    rows = [json.loads(line) for line in finished.stdout.splitlines()]
    return {row["case"]: row for row in rows}


@pytest.mark.parametrize("case", CASES)
def test_hostile_checkpoint_is_refused_with_a_short_message(told, case):
    # A path that the user gives may lead over links; one that is found in a folder may not.
    ways = WAYS[1:] if case == "checkpoints: link" else WAYS
    found = {way: told[case][way] for way in ways}
    assert {way: what for way, what in found.items() if not isinstance(what, int) or what > MAX_MESSAGE} == {}


@pytest.mark.parametrize("case", READABLE)
def test_checkpoint_that_only_looks_odd_is_read(told, case):
    assert {way: told[case][way] for way in WAYS} == dict.fromkeys(WAYS, "read")
