"""Every other fault of the kit, once each: the job ends as the table of exit codes says, and its resume is equal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvdtrain.checkpoint import list_checkpoints, load
from tests.faults.equality import compare_bits
from tests.faults.kit import Fault, tear
from tests.faults.lab import FRAMEWORKS, PROJECT
from tests.faults.runs import JOB
from tests.harness import Finished, mpirun_command, require, run_command
from tests.harness.requirements import skip_or_fail

TIMEOUT_S = 240
#: From a failure to the return of the launcher: ranks are gone within 10 s, on a machine with something else to do.
END_S = 20


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def fault(tmp_path):
    """A fault of rank 1 in the middle of step 5, to be changed where another one is wanted."""
    return Fault("raise", 1, "before", 5, str(tmp_path / "mark"))


def train(framework: str, folder: Path, *options: str, fault: Fault | None = None) -> Finished:
    """Train the small job on two ranks under mpirun."""
    program = (sys.executable, "-m", "hvdtrain", "train", str(JOB), "--framework", framework, "--run-dir", str(folder))
    env = {"OMP_NUM_THREADS": "1", **(fault.env() if fault else {})}
    return run_command(mpirun_command(2, *program, *options), timeout_s=TIMEOUT_S, cwd=PROJECT, env=env)


def require_equal_resume(lab, framework: str, folder: Path, step: int) -> Finished:
    """Resume from the checkpoint of ``step`` and require the bits of the undisturbed run."""
    finished = train(framework, folder, "--resume")
    assert finished.returncode == 0, finished.output
    assert f"resume: continuing from step {step} (" in finished.stderr
    assert compare_bits(lab.run(framework, "undisturbed"), folder).fault is None
    return finished


def steps(folder: Path) -> list[str]:
    """Return the names of the committed checkpoints, each of them read and verified."""
    paths = list_checkpoints(folder / "checkpoints")
    for path in paths:
        load(path)
    return [path.name for path in paths]


def name(step: int) -> str:
    return f"step-{step:08d}"


# ---------------------------------------------------------------- what ends the job


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_raise_on_one_rank_ends_all_with_its_traceback_once(lab, framework, folder, fault):
    require(framework)
    finished = train(framework, folder, fault=fault)
    assert lab.note_end(fault) < END_S
    assert finished.returncode == 1, finished.output
    assert finished.stderr.count("LookupError: a fault of the test [rank 1 of 2]\n") == 1, finished.stderr
    assert finished.stderr.count("Traceback") == 1, finished.stderr
    assert steps(folder) == [name(3)]
    require_equal_resume(lab, framework, folder, 3)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_sigterm_to_one_rank_saves_the_step_and_leaves_together(lab, framework, folder, fault):
    require(framework)
    fault = fault.at(kind="sigterm")
    finished = train(framework, folder, fault=fault)
    assert lab.note_end(fault) < END_S
    assert finished.returncode == 128 + 15, finished.output
    told = [line for line in finished.stderr.splitlines() if "stopped by SIGTERM after step" in line]
    assert len(told) == 1, finished.stderr
    # The votes of step 5 are in when the signal comes; those of step 6 hold it.
    assert steps(folder) in ([name(3), name(5)], [name(3), name(6)])
    require_equal_resume(lab, framework, folder, int(steps(folder)[-1].removeprefix("step-")))


@pytest.mark.parametrize(("framework", "rank", "limit_s"), [("torch", 0, 5), ("torch", 1, 5), ("tensorflow", 1, 10)])
def test_frozen_rank_ends_the_job_and_is_named(lab, framework, rank, limit_s, folder, fault):
    require(framework)
    options = ("--stall-timeout-s", str(limit_s))
    fault = fault.at(kind="freeze", rank=rank)
    finished = train(framework, folder, *options, fault=fault)
    assert lab.note_end(fault) < limit_s + 10
    assert finished.returncode == 3, finished.output
    assert finished.stderr.count("watchdog: ") == 1, finished.stderr
    assert f"The others wait for rank {rank}." in finished.stderr
    assert steps(folder) == [name(3)]
    require_equal_resume(lab, framework, folder, 3)


# ---------------------------------------------------------------- what the job survives


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_slow_rank_changes_no_bit(lab, framework):
    require(framework)
    slow = lab.run(framework, "slow")
    assert Path(f"{slow}.mark").exists()
    assert compare_bits(lab.run(framework, "undisturbed"), slow).fault is None


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_skipped_non_finite_batch_is_as_if_it_had_been_absent(lab, framework):
    require(framework)
    skipped, absent = (lab.run(framework, kind) for kind in ("non-finite", "weightless"))
    # The norm of no gradient is 0, that of an infinite one is not told; all else has the same bits.
    assert compare_bits(absent, skipped, ignore="grad_norm").fault is None
    assert compare_bits(lab.run(framework, "undisturbed"), skipped, ignore="grad_norm").fault is not None


# ---------------------------------------------------------------- damaged disks


def copy_without_end(lab, framework: str, folder: Path) -> list[Path]:
    """Make ``folder`` what a run left that was killed after its last save; return its checkpoints."""
    shutil.copytree(lab.run(framework, "undisturbed"), folder)
    (folder / "summary.json").unlink()
    paths = list_checkpoints(folder / "checkpoints")
    assert [path.name for path in paths] == [name(step) for step in (3, 6, 9, 12)]
    return paths


def test_torn_newest_checkpoint_is_passed_over_with_one_warning(lab, folder):
    require("torch")
    paths = copy_without_end(lab, "torch", folder)
    tear(list(paths[-1].iterdir()))
    finished = require_equal_resume(lab, "torch", folder, 9)
    warning = f"resume: damaged and passed over: {name(12)}; continuing from {name(9)}\n"
    assert finished.stderr.count(warning) == 1, finished.stderr
    assert finished.stderr.count("damaged") == 1
    assert steps(folder) == [name(step) for step in (3, 6, 9, 12)]


def test_torn_checkpoints_alone_are_refused_and_left_as_they_are(lab, folder):
    require("torch")
    paths = copy_without_end(lab, "torch", folder)
    for path in paths:
        tear(list(path.iterdir()))
    finished = train("torch", folder, "--resume")
    assert finished.returncode == 2, finished.output
    assert finished.stderr.count("hvdtrain: error: find_latest: no checkpoint of") == 1, finished.stderr
    assert list_checkpoints(folder / "checkpoints") == paths


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0777", "hvdtrain-test", str(place)]
    problem = None if os.geteuid() == 0 else "a small file system needs root"
    if problem is None:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        problem = done.stderr.strip() or None
    if problem is not None:
        skip_or_fail("tmpfs", problem)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=20)


def test_full_disk_is_told_and_leaves_the_checkpoint_before_it(lab, small_disk):
    require("torch")
    folder, filler = small_disk / "run", small_disk / "filler"
    one = sum(file.stat().st_size for file in (lab.run("torch", "undisturbed") / "checkpoints" / name(3)).iterdir())
    space = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    filler.write_bytes(bytes(space - int(2.5 * one)))  # rows and events take less than half a checkpoint
    finished = train("torch", folder)
    assert finished.returncode == 2, finished.output
    told = [line for line in finished.stderr.splitlines() if "No space left on device" in line]
    assert len(told) == 1, finished.stderr
    assert told[0].startswith("hvdtrain: error: commit: a checkpoint must be written whole, got OSError"), told
    assert "Earlier checkpoints are intact" in told[0]
    left = steps(folder)
    assert left, "at least one checkpoint fitted"
    assert len(left) < 4, "not all of them fitted"
    assert {path.name for path in (folder / "checkpoints").iterdir()} == set(left)
    filler.unlink()
    require_equal_resume(lab, "torch", folder, int(left[-1].removeprefix("step-")))
