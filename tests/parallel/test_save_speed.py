"""Saving 100 M parameters holds training up for no longer than a copy in memory takes."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.harness import require, run_command
from tests.parallel.commands import FRAMEWORKS, JOBS, PROJECT

pytestmark = pytest.mark.alone
#: Of 100 M parameters with AdamW's slots.
BYTES = 1_200_000_000
#: 1.2 GB are written three times, on disks that others use too.
TIMEOUT_S = 400


@pytest.fixture(scope="module", params=FRAMEWORKS)
def measured(request, tmp_path_factory):
    require(request.param)
    script = str(JOBS / "saves_large.py")
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    finished = run_command(
        [sys.executable, script, folder, request.param],
        timeout_s=TIMEOUT_S,
        env={"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]},
    )
    assert finished.returncode == 0, finished.output
    return {"framework": request.param, **json.loads(finished.stdout.splitlines()[-1])}


def test_save_blocks_training_no_longer_than_one_and_a_half_copies(measured, capsys):
    ratio = measured["blocked_s"] / measured["copy_s"]
    with capsys.disabled():
        print(
            f"\n{measured['framework']}: blocked {measured['blocked_s']:.3f} s, copy {measured['copy_s']:.3f} s, "
            f"ratio {ratio:.2f}",
            file=sys.stderr,  # what a process of pytest-xdist says there is seen
        )
    assert measured["bytes"] >= BYTES
    assert ratio <= 1.5, measured["all"]


def test_training_goes_on_while_a_checkpoint_is_written(measured):
    # The longest step, as part of the time that writing took; a writer that held the interpreter would be one step.
    assert measured["longest_step"] < 0.5
    assert measured["longest_step_held"] > 0.8


def test_save_needs_one_copy_of_memory(measured):
    assert measured["peak_growth"] < 1.15


def test_written_bytes_grow_all_the_while(measured):
    different, are_sorted, total = measured["written"]
    assert are_sorted
    assert different >= 50
    assert total >= 3 * measured["bytes"]


def test_last_checkpoint_is_whole(measured):
    assert (measured["checkpoints"], measured["values"]) == (["step-00000002"], 100_000_000)
