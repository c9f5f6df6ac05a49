"""Stalls of real ranks: exit code 3, the right rank, its line, and a verdict; and what is no stall."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from tests.harness import mpirun_command, require, start_command
from tests.parallel.commands import JOBS, PROJECT, own_stderr, train, train_plain

TIMEOUT_S = 100


def line_of(comment: str) -> str:
    """Return ``file:line`` of the job's line that ends with this comment."""
    lines = (JOBS / "stalls.py").read_text().splitlines()
    return f"stalls.py:{1 + next(i for i, line in enumerate(lines) if line.endswith(f'# {comment}'))}"


def stall(framework: str, kind: str, rank: int, folder: Path) -> list[str]:
    """Return the lines of the report; the job must end with code 3."""
    require(framework)
    options = ("--framework", framework, "--run-dir", str(folder))
    environ = {"HVDTRAIN_TEST_STALL": f"{kind}:{rank}"}
    finished = train("stalls.py", *options, num_ranks=2, env=environ, timeout_s=TIMEOUT_S)
    assert finished.returncode == 3, finished.output
    report = re.search(r"^hvdtrain: error: watchdog.*^Verdict: [^\n]*", finished.stderr, re.M | re.S)
    assert report, finished.output
    head, *rows, verdict = report[0].splitlines()
    assert head.startswith("hvdtrain: error: watchdog: a rank must move within stall_timeout_s=4 s"), finished.output
    assert [re.match(r"  rank (\d) on \S+: step \d+, ", row)[1] for row in rows] == ["0", "1"], finished.output
    return [*rows, verdict]


def test_a_sleeping_callback_is_rank_only_work(tmp_path):
    _, there, verdict = stall("tensorflow", "sleep", 1, tmp_path / "run")
    assert "step 3, callback for" in there
    assert f"rank-only work: rank 1 alone is in its callback at {line_of('slow callback')} in on_step_end." in verdict


def test_one_process_alone_ends_too(tmp_path):
    require("torch")
    options = ("--framework", "torch", "--run-dir", str(tmp_path / "run"))
    finished = train_plain("stalls.py", *options, env={"HVDTRAIN_TEST_STALL": "sleep:0"}, timeout_s=TIMEOUT_S)
    assert finished.returncode == 3, finished.output
    verdict = own_stderr(finished).splitlines()[-1]
    assert f"slow work: no rank comes out of its callback, at {line_of('slow callback')} in on_step_end." in verdict


@pytest.mark.parametrize(("framework", "rank"), [("torch", 0), ("torch", 1), ("tensorflow", 0)])
def test_a_frozen_rank_is_named_by_one_that_is_not(framework, rank, tmp_path):
    *rows, verdict = stall(framework, "freeze", rank, tmp_path / "run")
    assert f"dead rank: rank {rank} does not answer" in verdict
    assert f"The others wait for rank {rank}." in verdict
    assert verdict.endswith(f"[rank {1 - rank} of 2]")
    assert re.search(r"silent for \d+ s$", rows[rank])
    assert "reduce for" in rows[1 - rank]
    assert rows[1 - rank].endswith("waits for other ranks")


def test_a_sample_that_does_not_come_is_slow_data(tmp_path):
    *_, verdict = stall("torch", "data", 1, tmp_path / "run")
    assert f"slow data: rank 1 waits for its samples at {line_of('slow sample')} in __getitem__." in verdict


def test_a_collective_of_one_rank_alone_is_rank_only_work(tmp_path):
    here, _, verdict = stall("torch", "collective", 0, tmp_path / "run")
    assert here.endswith("waits for other ranks")
    assert f"rank 0 alone is in a collective of its callback, at {line_of('rank-only barrier')}" in verdict


def test_a_job_that_was_suspended_for_longer_than_the_limit_goes_on(tmp_path):
    """A scheduler may stop all processes and continue them later; that time has not passed for the job."""
    require("torch")
    options = ("--framework", "torch", "--run-dir", str(tmp_path / "run"), "--stall-timeout-s", "8")
    command = mpirun_command(2, "python", "-m", "hvdtrain", "train", str(JOBS / "stalls.py"), *options)
    environ = {"HVDTRAIN_TEST_STALL": "suspend:0", "OMP_NUM_THREADS": "1"}
    with start_command(command, env=environ, cwd=PROJECT) as launch:
        deadline = time.monotonic() + 60
        while "step 5 " not in launch.stderr() and time.monotonic() < deadline:
            time.sleep(0.1)
        # Both ranks now sleep in a callback for 13 s; of these 7 are taken away.
        ranks = [p for p in launch.processes() if "hvdtrain" in p.cmdline() and "mpirun" not in p.cmdline()]
        assert len(ranks) == 2
        time.sleep(2)
        for process in ranks:
            process.send_signal(signal.SIGSTOP)
        time.sleep(7)
        for process in ranks:
            process.send_signal(signal.SIGCONT)
        finished = launch.finish(timeout_s=60)
    assert finished.returncode == 0, finished.output
