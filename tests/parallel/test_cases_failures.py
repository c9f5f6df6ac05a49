"""Cases that end a launch: a rank that raises, leaves, is killed, is told to stop, or stops moving."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from hvdtrain.checkpoint import load
from tests.harness import Finished, in_company, mpirun_command, require, run_command, start_command
from tests.parallel.commands import BIN, FRAMEWORKS, JOBS, PROJECT, own_stderr, require_success
from tests.parallel.rules import loadable_steps, require_whole

SCRIPT = JOBS / "faulty.py"
#: ``w`` of the toy after each of its six updates.
TOY = [-0.75, -3.5, -7.75, -8.5, -11.25, -15.5]
#: What mpirun itself logs when its ranks end in haste: host and process, then the name of its own daemon.
MPIRUN_LINE = re.compile(r"\[[\w.-]+:\d+\] \[\[\d+,0\],0\] |$")
STALL_S = 4
#: For everything that has to end at once: mostly the start of two ranks on a loaded machine.
SOON_S = in_company(60)


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    require(request.param)
    return request.param


#: For what another test shows in TensorFlow: tests/faults, or tests/parallel/test_watchdog.py.
with_one_framework = pytest.mark.parametrize("framework", ["torch"], indirect=True)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def words(framework, folder, fault, *, launcher="mpirun", resume=False, **settings):
    """Return the command that starts the toy with a fault on two ranks."""
    script = [str(SCRIPT), framework, str(folder), fault, json.dumps(settings), *(["--resume"] if resume else [])]
    if launcher == "mpirun":
        return mpirun_command(2, "python", *script)
    first = {"horovodrun": ["horovodrun", "-np", "2"], "launch": ["hvdtrain", "launch", "-np", "2", "--"]}[launcher]
    return [str(BIN / first[0]), *first[1:], str(BIN / "python"), *script]


def environment(tmp_path):
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    return {"OMP_NUM_THREADS": "1", "HVDTRAIN_TEST_FOLDER": str(tmp_path), "PATH": path}


def run(framework, folder, fault, *, timeout_s=SOON_S, **arguments) -> Finished:
    command = words(framework, folder, fault, **arguments)
    return run_command(command, timeout_s=timeout_s, env=environment(folder.parent), cwd=PROJECT)


def weight(folder, step):
    return float(load(folder / "checkpoints" / f"step-{step:08d}").state.weights["w"])


def require_committed(folder: Path, least: int) -> int:
    """Require checkpoints of all steps up to at least ``least``, with the right weights; return the last step."""
    steps = loadable_steps(folder)
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= least
    assert [weight(folder, step) for step in steps] == TOY[: len(steps)]
    return steps[-1]


# ---------------------------------------------------------------- 33, 34, 35: one rank fails


def require_one_report(finished: Finished, error: str) -> None:
    """Require one traceback, which ends with ``error`` and the rank and is the last thing that ranks print."""
    lines = [line for line in own_stderr(finished).splitlines() if not MPIRUN_LINE.match(line)]
    assert lines[-1] == f"{error} [rank 1 of 2]", finished.stderr
    assert lines.count("hvdtrain: this rank failed and ends the job [rank 1 of 2]") == 1, finished.stderr
    assert finished.output.count("Traceback") == 1, finished.stderr
    assert finished.output.count(error) == 1, finished.stderr


def test_case_33_rank_that_raises_ends_the_one_that_sleeps_in_user_code(framework, folder):
    finished = run(framework, folder, "raises_while_the_root_sleeps", save_every_steps=1)
    assert finished.returncode == 1
    require_one_report(finished, "RuntimeError: broken on purpose")
    require_committed(folder, 2)


@with_one_framework
def test_case_35_rank_without_memory_is_named_last(framework, folder):
    finished = run(framework, folder, "runs_out_of_memory", save_every_steps=1)
    assert finished.returncode == 1
    require_one_report(finished, "MemoryError: no memory left on purpose")
    require_committed(folder, 2)


#: What a worker does, and the code of ``mpirun``, which ``horovodrun`` passes on. Workers that are killed or exit with
#: another code than 0, under each launcher: test_launch_failures.py; killed ones in TensorFlow: tests/faults.
ENDS = {"exits_with_zero": 1, "leaves_at_once_with_zero": None, "raises": 1}


@pytest.mark.parametrize(
    ("framework", "launcher", "fault"),
    [
        *(("torch", "mpirun", fault) for fault in ENDS if fault != "raises"),  # which cases 33 and 35 do
        ("tensorflow", "horovodrun", "raises"),
    ],
)
def test_case_34_worker_that_leaves_ends_the_launch_and_never_with_zero(framework, launcher, fault, folder):
    require(framework)
    finished = run(framework, folder, fault, launcher=launcher, save_every_steps=1)
    assert finished.returncode != 0, finished.output
    assert ENDS[fault] in (None, finished.returncode), finished.output
    require_committed(folder, 2)
    assert not (folder / "summary.json").exists()


# ---------------------------------------------------------------- 37, 38: the end, and a save that is cut off

#: Of the twenty that the case asks for; all of them where everything is tested.
NUM_RUNS = 20 if os.environ.get("HVDTRAIN_FULL") else 2


def test_case_37_every_run_with_loader_workers_ends_with_zero(framework, tmp_path):
    for number in range(NUM_RUNS):
        folder = tmp_path / f"run-{number}"
        require_success(run(framework, folder, "none", data_workers=2, epochs=1))
        require_whole(folder, [3])
        assert weight(folder, 3) == TOY[2]


@with_one_framework
def test_case_38_root_killed_in_a_save_goes_on_from_the_one_before(framework, folder):
    finished = run(framework, folder, "root_is_killed_in_a_save", save_every_steps=1)
    assert finished.returncode != 0, finished.output
    assert loadable_steps(folder) == [1, 2]
    unfinished = [path.name for path in (folder / "checkpoints").iterdir() if ".tmp-" in path.name]
    assert len(unfinished) == 1, "the kill did not come in the middle of saving"
    require_success(run(framework, folder, "none", resume=True, save_every_steps=1))
    require_whole(folder, range(1, 7))
    assert require_committed(folder, 6) == 6


# ---------------------------------------------------------------- 40: stop signals


def stop(framework, folder, what, receiver, *, launcher):
    """Start a run of minutes, send SIGTERM while both ranks do ``what``, and return what it comes to within one."""
    fault = {"training": "trains_slowly", "evaluating": "evaluates_for_minutes"}[what]
    command = words(framework, folder, fault, launcher=launcher, save_every_steps=1, epochs=500)
    with start_command(command, env=environment(folder.parent), cwd=PROJECT) as launch:
        pids = [_wait_for(folder.parent / f"{what}-{rank}") for rank in (0, 1)]
        os.kill(pids[1] if receiver == "rank 1" else launch.process.pid, signal.SIGTERM)
        return launch.finish(timeout_s=SOON_S)


def _wait_for(file: Path) -> int:
    deadline = time.monotonic() + SOON_S
    while not file.exists():
        assert time.monotonic() < deadline, f"{file.name} was not told"
        time.sleep(0.05)
    return int(file.read_text())


@pytest.mark.parametrize(
    ("framework", "what", "receiver"),
    [
        ("torch", "training", "rank 1"),
        ("tensorflow", "training", "launcher"),
        ("torch", "evaluating", "launcher"),
        ("tensorflow", "evaluating", "rank 1"),
    ],
)
def test_case_40_stop_signal_saves_and_all_leave_together(framework, what, receiver, folder):
    require(framework)
    launcher = "mpirun" if receiver == "rank 1" else "launch"
    finished = stop(framework, folder, what, receiver, launcher=launcher)
    assert finished.returncode == 128 + signal.SIGTERM, finished.output
    last = loadable_steps(folder)[-1]
    assert finished.stderr.count(f"fit: stopped by SIGTERM after step {last}, which is saved.") == 1, finished.stderr
    require_whole(folder, range(1, last + 1))
    # 7.75 an epoch of three steps.
    assert weight(folder, last) == TOY[(last - 1) % 3] - 7.75 * ((last - 1) // 3)
    assert not (folder / "summary.json").exists()


@with_one_framework
def test_case_40_plain_mpirun_that_is_stopped_leaves_its_last_checkpoint(framework, folder):
    finished = stop(framework, folder, "training", "launcher", launcher="mpirun")
    assert finished.returncode != 0, finished.output
    last = loadable_steps(folder)[-1]
    assert last >= 2
    assert weight(folder, last) == TOY[(last - 1) % 3] - 7.75 * ((last - 1) // 3)


# ---------------------------------------------------------------- 31: not finite


def test_case_31_spoilt_step_ends_the_launch_with_its_code_and_one_message(framework, folder):
    finished = run(framework, folder, "spoils_the_second_step", save_every_steps=1)
    assert finished.returncode == 4, finished.output
    (line,) = [line for line in own_stderr(finished).splitlines() if line.startswith("hvdtrain: error: ")]
    assert line.startswith("hvdtrain: error: step 2: loss and gradient must be finite, got loss sum "), line
    assert " It comes from rank 1 (samples 7). " in line
    assert "Traceback" not in finished.output
    require_whole(folder, [1])
    assert weight(folder, 1) == TOY[0]


# ---------------------------------------------------------------- 7, 36: nothing moves


def line_of(text: str) -> int:
    """Return the number of the script's one line that holds ``text``."""
    (number,) = [n for n, line in enumerate(SCRIPT.read_text().splitlines(), 1) if text in line]
    return number


def require_stall(finished: Finished, rank: int, text: str) -> None:
    """Require exit code 3 and one report that names the rank that the others wait for, and its line."""
    assert finished.returncode == 3, finished.output
    assert finished.stderr.count("hvdtrain: error: watchdog: ") == 1, finished.stderr
    report = own_stderr(finished).split("hvdtrain: error: watchdog: ")[1]
    place = rf"\bfaulty\.py:{line_of(text)}\b"
    assert re.search(rf"^Verdict: rank-only work: .*\brank {rank}\b.*{place}", report, re.M), report
    assert f"The others wait for rank {rank}." in report, report
    assert re.search(rf"^ *rank {rank} .*: step 3, callback .*{place}", report, re.M), report
    assert "Traceback" not in finished.output


def test_case_7_root_that_sleeps_in_a_callback_ends_the_job_and_is_named_with_its_line(framework, folder):
    finished = run(framework, folder, "root_sleeps", stall_timeout_s=STALL_S, save_every_steps=1)
    require_stall(finished, 0, "the root sleeps here")
    require_committed(folder, 2)


@with_one_framework
def test_case_36_rank_that_never_returns_from_a_callback_is_named_with_its_line(framework, folder):
    finished = run(framework, folder, "other_never_returns", stall_timeout_s=STALL_S, save_every_steps=1)
    require_stall(finished, 1, "the other rank is here for ever")
    require_committed(folder, 2)


def test_case_7_root_that_sleeps_for_less_than_the_limit_is_waited_for(folder):
    require("torch")
    # Five times as long as the others would need for all of their steps.
    require_success(run("torch", folder, "root_naps", stall_timeout_s=STALL_S))
    require_whole(folder, [6])
    assert weight(folder, 6) == TOY[5]


def test_case_36_evaluation_of_three_times_the_limit_that_advances_is_no_stall(framework, folder):
    # Twelve samples of a second each on each rank, two at a time.
    settings = {"stall_timeout_s": STALL_S, "epochs": 1}
    began = time.monotonic()
    require_success(run(framework, folder, "evaluates_slowly", timeout_s=2 * SOON_S, **settings))
    assert time.monotonic() - began > 3 * STALL_S
    require_whole(folder, [3])
