"""From the command to the first step: beside what the framework and Horovod take alone, launches in turn."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.bench.peers import HVDTRAIN, PROJECT
from tests.harness import require, run_command, start_command
from tests.harness.mpi import mpirun_command
from tests.parallel.commands import FRAMEWORKS, require_success

REPEATS = 3
#: Of the bare import and ``hvd.init()`` under mpirun. Ours waits for more processes, so other work on the machine makes
#: the ratio larger: the least of some attempts is judged.
MOST, ATTEMPTS = 1.5, 3
LIMIT_S = 120
BARE = "import horovod.{0} as hvd, {0}; hvd.init(); print('READY', flush=True)"


def seconds_until(mark: str, words: Sequence[str]) -> float:
    """Return the seconds from the start of a command until it writes a line that holds ``mark``."""
    began = time.monotonic()
    with start_command(words, env={"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}, cwd=PROJECT) as launch:
        while mark not in launch.stdout() + launch.stderr():
            seconds = time.monotonic() - began
            assert seconds < LIMIT_S, (
                f"{words}: {mark!r} not told in {seconds:.0f} s\n{launch.stdout()}{launch.stderr()}"
            )
            time.sleep(0.01)
        seconds = time.monotonic() - began
        assert launch.finish(timeout_s=LIMIT_S).returncode == 0
    return seconds


def ours(framework: str, run_dir: Path) -> float:
    """Return the seconds from the command to the first step of the digits job, which follows the header's last line."""
    options = ("--framework", framework, "--run-dir", str(run_dir), "--max-steps", "1")
    words = (*HVDTRAIN, "launch", "-np", "2", "--", "hvdtrain", "train", "examples/digits.py", *options)
    return seconds_until("  run folder ", words)


def ratio_of(framework: str, folder: Path) -> float:
    """Return the median time of ours over that of the bare import, launched in turn."""
    bare = mpirun_command(2, "python", "-c", BARE.format(framework))
    times = [(ours(framework, folder / str(i)), seconds_until("READY", bare)) for i in range(REPEATS)]
    return statistics.median(t for t, _ in times) / statistics.median(t for _, t in times)


@pytest.mark.alone
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_first_step_comes_soon_after_the_bare_import(framework, tmp_path):
    require(framework)
    ratios = []
    while len(ratios) < ATTEMPTS and not (ratios and min(ratios) < MOST):
        ratios.append(ratio_of(framework, tmp_path / str(len(ratios))))
    print(f"{framework}: {ratios}")
    assert min(ratios) < MOST, ratios


def test_a_run_that_compiles_nothing_does_not_import_the_compiler(tmp_path):
    """It would take a second, as long as PyTorch itself, and 70 MiB."""
    require("torch")
    words = ["hvdtrain", "train", "examples/digits.py", "--framework", "torch", "--max-steps", "2"]
    program = (
        f"import atexit, sys; sys.argv = {[*words, '--run-dir', str(tmp_path / 'run')]!r}\n"
        "atexit.register(lambda: print('loaded:', sorted({'torch._dynamo', 'sympy', 'sklearn'} & set(sys.modules))))\n"
        "from hvdtrain.cli.start import start\n"
        "start()\n"
    )
    finished = run_command([sys.executable, "-c", program], timeout_s=LIMIT_S, cwd=PROJECT)
    require_success(finished)
    assert finished.stdout == "loaded: []\n"
