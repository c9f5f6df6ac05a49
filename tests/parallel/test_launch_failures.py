"""A rank that fails under each launcher, and `hvdtrain launch --restarts`, which brings the run to its end."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.harness import mpirun_command, require, run_command
from tests.parallel.commands import BIN, FRAMEWORKS, JOBS, limited, own_stderr
from tests.parallel.rules import loadable_steps

JOB = str(JOBS / "fails.py")
LAUNCHERS = {
    "hvdtrain": lambda *rest: [str(BIN / "hvdtrain"), "launch", "-np", "2", "--", "python", JOB, *rest],
    "mpirun": lambda *rest: mpirun_command(2, "python", JOB, *rest),
    "horovodrun": lambda *rest: [str(BIN / "horovodrun"), "-np", "2", str(BIN / "python"), JOB, *rest],
}
CODES = {"raise": 1, "exit": 3, "kill": 137}
LAST_LINES = {"raise": "LookupError: no such width [rank 1 of 2]", "exit": "SystemExit: 3 [rank 1 of 2]"}


@pytest.fixture
def environ(tmp_path):
    """What a launch needs: the environment's programs, and a log of its own."""
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    return {"env": {"PATH": path, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(tmp_path / "state")}}


def told_by_ranks(finished):
    """Return the lines of standard error without horovodrun's tags and without what launchers and frameworks add."""
    text = re.sub(r"^\[1,\d+\]<stderr>:", "", own_stderr(finished), flags=re.M)
    return [line for line in text.splitlines() if "ORTE_ERROR_LOG" not in line]


@pytest.mark.parametrize("how", CODES)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_failing_rank_ends_the_launch_with_its_code_and_its_words_are_the_last(launcher, how, tmp_path, environ):
    require("torch")
    command = LAUNCHERS[launcher]("torch", str(tmp_path / "run"), how)
    finished = run_command(command, **limited(environ))
    told = told_by_ranks(finished)
    log = tmp_path / "state" / "hvdtrain" / "launch.log"
    assert finished.returncode == CODES[how], finished.output
    if how == "kill" and launcher == "hvdtrain":
        ended = f"launch: rank 1 on {os.uname().nodename} was ended by signal 9 (Killed)"
        assert told[-1] == f"{ended}; mpirun's own words are in {log}", finished.output
    elif how != "kill":
        assert told[-1] == LAST_LINES[how], finished.output
        assert told.count("Traceback (most recent call last):") == 1, finished.output
        assert finished.stderr.count(LAST_LINES[how]) == 1, finished.output
    steps = loadable_steps(tmp_path / "run")
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 2
    assert not (tmp_path / "run" / "summary.json").exists()
    if launcher == "hvdtrain":
        assert finished.stderr.splitlines()[-1] == told[-1], finished.output
        assert "-----" not in finished.output
        assert "-----" in log.read_text() or "ORTE_ERROR_LOG" in log.read_text()


def launched(environ, *rest, restarts):
    options = ["-np", "2", "--restarts", str(restarts), "--", "python", JOB, *map(str, rest)]
    finished = run_command([str(BIN / "hvdtrain"), "launch", *options], **limited(environ))
    assert "\x1e" not in finished.output
    return finished


def weights_and_slots(folder: Path) -> dict[str, bytes]:
    """Return the bytes of the tensors at the end of the run."""
    return {path.name: path.read_bytes() for path in (folder / "checkpoints" / "step-00000006").glob("*.safetensors")}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_run_whose_rank_is_killed_is_launched_again_and_ends_as_the_undisturbed_one(framework, tmp_path, environ):
    require(framework)
    plain = launched(environ, framework, tmp_path / "plain", "nothing", restarts=1)
    assert plain.returncode == 0, plain.output
    killed = launched(environ, framework, tmp_path / "killed", "kill", restarts=1)
    assert killed.returncode == 0, killed.output
    relaunches = [line for line in killed.stderr.splitlines() if line.startswith("launch: attempt")]
    # Rank 1 stands in a callback of step 3; the root may have begun step 4.
    form = r"launch: attempt 2 of 2 after exit code 137 at step [34], on 2 ranks"
    assert [re.fullmatch(form, line) is not None for line in relaunches] == [True], killed.output
    assert weights_and_slots(tmp_path / "killed") == weights_and_slots(tmp_path / "plain") != {}
    rows = [(tmp_path / name / "metrics.jsonl").read_text().count("\n") for name in ("plain", "killed")]
    assert rows == [6, 6]


def test_a_step_that_fails_twice_ends_the_attempts(tmp_path, environ):
    require("torch")
    finished = launched(environ, "torch", tmp_path / "run", "raise", "always", restarts=3)
    assert finished.returncode == 1, finished.output
    assert [line for line in finished.stderr.splitlines() if line.startswith(("launch:", "LookupError"))][1:] == [
        "LookupError: no such width [rank 1 of 2]",
        "launch: attempt 2 of 4 after exit code 1 at step 3, on 2 ranks",
        "LookupError: no such width [rank 1 of 2]",
        "launch: gives up after attempt 2 of 4: it failed twice at step 3",
    ], finished.output
