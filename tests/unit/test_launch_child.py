"""What real mpirun makes of exit codes, output, signals, and of the death of its launcher."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import run_command, start_command

TIME_LIMIT_S = 50.0
needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun") is None and "HVDTRAIN_REQUIRE" not in os.environ, reason="mpirun is not on PATH"
)

LAUNCHER = (
    "import sys; from hvdtrain.launch.mpirun import make_request; from hvdtrain.launch.restarts import run_launch; "
    "sys.exit(run_launch(make_request(2, sys.argv[1:]), is_quiet=True))"
)


def list_words(code):
    return [sys.executable, "-c", LAUNCHER, "python", "-c", code]


@needs_mpirun
def test_mpirun_exit_code_passes_through():
    assert run_command(list_words("raise SystemExit(3)"), timeout_s=TIME_LIMIT_S).returncode == 3


@needs_mpirun
def test_mpirun_output_of_all_ranks_passes_through():
    # One write a line, also where Python does not buffer: mpirun mixes the writes of ranks.
    code = "import os; os.write(1, b'out %s\\n' % os.environb[b'OMPI_COMM_WORLD_RANK']); os.write(2, b'err\\n')"
    done = run_command(list_words(code), timeout_s=TIME_LIMIT_S)
    assert sorted(done.stdout.splitlines()) == ["out 0", "out 1"]
    assert done.stderr.count("err\n") == 2
    assert done.returncode == 0


@needs_mpirun
def test_mpirun_ranks_use_the_launching_interpreter_without_its_bin_on_path():
    folders = os.environ["PATH"].split(os.pathsep)
    path = os.pathsep.join(folder for folder in folders if Path(folder) != Path(sys.executable).parent)
    program = "import sys; sys.stdout.write(sys.executable + chr(10))"  # one write, where print may make two
    done = run_command(list_words(program), env={"PATH": path}, timeout_s=TIME_LIMIT_S)
    assert done.stdout == f"{sys.executable}\n" * 2


@contextmanager
def started(code, *arguments):
    """Start two ranks of a program that prints ``up``, and wait until both have."""
    with start_command([*list_words(code), *map(str, arguments)]) as launch:
        wait_for_lines(launch, "up", 2)
        yield launch


def wait_for_lines(launch, word, times):
    limit = time.monotonic() + TIME_LIMIT_S
    while launch.stdout().count(word) < times:
        assert time.monotonic() < limit, launch.stderr()
        time.sleep(0.05)


def wait_for_text(launch, text):
    limit = time.monotonic() + TIME_LIMIT_S
    while text not in launch.stderr():
        assert time.monotonic() < limit, launch.stderr()
        time.sleep(0.005)


@needs_mpirun
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_mpirun_signal_ends_all_ranks_and_leaves_no_process(number):
    with started("import time; print('up', flush=True); time.sleep(300)") as launch:
        launch.process.send_signal(number)
        assert launch.finish(timeout_s=20.0).returncode == 128 + number


@needs_mpirun
def test_signal_at_the_very_start_ends_the_launch_with_its_code_and_one_line():
    words = [sys.executable, "-m", "hvdtrain", "launch", "-np", "2", "--", "sleep", "60"]
    with start_command(words) as launch:
        wait_for_text(launch, "launch: starts 2 ranks: sleep 60; ")  # mpirun does not listen yet
        launch.process.send_signal(signal.SIGINT)
        done = launch.finish(timeout_s=20.0)
    assert done.returncode == 130
    assert len(done.stderr.splitlines()) == 2, done.stderr
    assert done.stderr.splitlines()[1].startswith("launch: SIGINT: ")


# A rank that trains saves when it gets SIGUSR1. It waits for the other one, because mpirun ends all ranks when the
# first one leaves with a code.
SAVING_RANK = """
import os, signal, sys, time
from pathlib import Path

folder, rank, code = Path(sys.argv[1]), os.environ["OMPI_COMM_WORLD_RANK"], int(sys.argv[2])
got = []
signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
print("up", flush=True)
while not got:
    time.sleep(0.02)
time.sleep(1.5)  # longer than the second that mpirun leaves after SIGTERM
(folder / f"saved-{rank}").write_text("whole")
while len(list(folder.iterdir())) < 2:
    time.sleep(0.02)
sys.exit(code)
"""


@needs_mpirun
def test_mpirun_ranks_that_save_on_sigusr1_end_in_good_order(tmp_path):
    with started(SAVING_RANK, tmp_path, 143) as launch:
        launch.process.send_signal(signal.SIGTERM)
        assert launch.finish(timeout_s=20.0).returncode == 143
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"saved-0": "whole", "saved-1": "whole"}


@needs_mpirun
def test_mpirun_ranks_that_finish_in_spite_of_a_signal_end_with_0(tmp_path):
    with started(SAVING_RANK, tmp_path, 0) as launch:
        launch.process.send_signal(signal.SIGTERM)
        assert launch.finish(timeout_s=20.0).returncode == 0


@needs_mpirun
def test_mpirun_second_signal_ends_ranks_that_do_not_heed_the_first():
    code = "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: print('got', flush=True)); "
    with started(code + "print('up', flush=True)\nwhile True: time.sleep(1)") as launch:
        launch.process.send_signal(signal.SIGTERM)
        wait_for_lines(launch, "got", 2)
        launch.process.send_signal(signal.SIGTERM)
        assert launch.finish(timeout_s=20.0).returncode == 143


# Output


@pytest.fixture(autouse=True)
def state_folder(monkeypatch, tmp_path_factory):
    """A folder of its own for the launcher's log."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


MANY_LINES = """
import os, sys
rank = os.environ["OMPI_COMM_WORLD_RANK"]
if rank == "0":
    sys.stdout = open(1, "w", buffering=1 << 16)
    for number in range(200_000):
        print("line", number)
sys.stdout.write("the end of rank " + rank)
"""


@needs_mpirun
def test_mpirun_output_at_a_high_rate_arrives_whole_and_in_order():
    done = run_command(list_words(MANY_LINES), timeout_s=TIME_LIMIT_S)
    assert done.returncode == 0
    text = done.stdout
    for rank in (0, 1):  # which may stand in any place, as it has no newline
        assert text.count(f"the end of rank {rank}") == 1
        text = text.replace(f"the end of rank {rank}", "")
    assert text == "".join(f"line {number}\n" for number in range(200_000))
    assert done.stderr == ""


@needs_mpirun
def test_mpirun_ranks_run_on_when_nobody_reads_their_output(tmp_path):
    code = MANY_LINES + f"open({str(tmp_path)!r} + '/done-' + rank, 'w')"
    with start_command(["bash", "-c", '"$@" | head -1; exit ${PIPESTATUS[0]}', "-", *list_words(code)]) as launch:
        done = launch.finish(timeout_s=TIME_LIMIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["done-0", "done-1"]


# Failures


FAILING = """
import os, signal, sys, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    {action}
time.sleep(60)
"""
HOST = os.uname().nodename
ENDS = {
    "os.kill(os.getpid(), 9)": (137, f"rank 1 on {HOST} was ended by signal 9 (Killed)"),
    "os.abort()": (134, f"rank 1 on {HOST} was ended by signal 6 (Aborted)"),
    "os._exit(7)": (7, "rank 1 on localhost left with exit code 7"),
    "sys.exit(3)": (3, "rank 1 on localhost left with exit code 3"),
    "sys.stderr.write('half'); sys.exit(3)": (3, "rank 1 on localhost left with exit code 3"),
}


@needs_mpirun
@pytest.mark.parametrize("action", ENDS)
def test_mpirun_failure_that_no_rank_tells_is_told_in_one_last_line(action, state_folder):
    done = run_command(list_words(FAILING.format(action=action)), timeout_s=TIME_LIMIT_S)
    log = state_folder / "hvdtrain" / "launch.log"
    code, line = ENDS[action]
    half = "half\n" if "half" in action else ""
    assert done.stdout == ""
    assert done.stderr == f"{half}launch: {line}; mpirun's own words are in {log}\n"
    assert done.returncode == code
    assert "Primary job  terminated normally" in log.read_text()


@needs_mpirun
def test_mpirun_traceback_is_the_very_last_text():
    done = run_command(list_words(FAILING.format(action="raise LookupError('no such width')")), timeout_s=TIME_LIMIT_S)
    assert done.stderr.endswith("\nLookupError: no such width\n")
    assert done.stderr.count("Traceback") == 1
    assert "launch:" not in done.stderr
    assert done.returncode == 1


def mpirun_of(launch):
    (found,) = (process for process in launch.processes() if process.name() in ("mpirun", "orterun"))
    return found


LOOP = "print('up', flush=True)\nwhile True: sum(range(1000))"


@needs_mpirun
def test_mpirun_and_its_ranks_end_when_their_launcher_is_killed():
    with started(LOOP) as launch:
        assert len(launch.processes()) == 5  # launcher, guard, mpirun and two ranks
        launch.process.kill()
        done = launch.finish(timeout_s=20.0)  # refuses processes that are left after 10 s
    assert done.returncode == -signal.SIGKILL


@needs_mpirun
def test_ranks_end_and_the_launcher_says_so_when_mpirun_is_killed():
    with started(LOOP) as launch:
        mpirun_of(launch).kill()
        done = launch.finish(timeout_s=20.0)
    assert done.returncode == 137
    assert done.stderr == "launch: mpirun was ended by SIGKILL, and its ranks with it\n"


ORPHAN = """
import os, subprocess, sys
from hvdtrain.launch import child
if sys.argv[1:] == ["late"]:
    real = os.getpid
    child.os.getpid = lambda: real() + 1  # as though another process had been the parent
process = child._start(["sleep", "60"], dict(os.environ))
process.wait()
sys.exit(process.returncode)
"""


def test_child_whose_launcher_has_gone_before_it_could_ask_does_not_start():
    # Waits for 60 s unless the child sees that its parent is not the one that began it.
    assert run_command([sys.executable, "-c", ORPHAN, "late"], timeout_s=20).returncode == 1
