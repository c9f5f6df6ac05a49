"""What real mpirun makes of exit codes, output and signals."""

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

LAUNCHER = "import sys; from hvdtrain.launch import *; sys.exit(run_launch(make_request(2, sys.argv[1:])))"


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
    done = run_command(list_words("import sys; print(sys.executable)"), env={"PATH": path}, timeout_s=TIME_LIMIT_S)
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


@needs_mpirun
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_mpirun_signal_ends_all_ranks_and_leaves_no_process(number):
    with started("import time; print('up', flush=True); time.sleep(300)") as launch:
        launch.process.send_signal(number)
        assert launch.finish(timeout_s=20.0).returncode == 128 + number


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
