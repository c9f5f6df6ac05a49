"""What ``hvdtrain plan`` says of two ranks, against what ``hvdtrain bench`` then measures of them."""

from __future__ import annotations

import json
import statistics
import sys

import pytest

from tests.harness import require, run_command
from tests.parallel.commands import PROJECT

TIMEOUT_S = 250
#: A machine that others use too may be another one a minute later: the median of so many pairs is judged, at most.
ATTEMPTS = 5
STEP, MEMORY = 0.20, 0.15

JOBS = {
    "digits": ["examples/digits.py"],
    "shakespeare": ["examples/shakespeare.py", "--size", "tiny"],
}
#: That are measured: twice as many as a plan tries, at least, and a second or more of them.
STEPS = {"digits": 100, "shakespeare": 40}


def hvdtrain(*words):
    finished = run_command([sys.executable, "-m", "hvdtrain", *words], timeout_s=TIMEOUT_S, cwd=PROJECT)
    assert finished.returncode == 0, finished.output
    return finished


def planned(name, framework, folder):
    hvdtrain("plan", *JOBS[name], "--framework", framework, "-np", "2", "--json", str(folder / "plan.json"))
    told = json.loads((folder / "plan.json").read_text())
    assert told["network"]["is_measured"]
    (row,) = told["rows"]
    return row["step_s"], row["memory"]


def measured(name, framework, folder):
    steps = ("--warm-up", "5", "--steps", str(STEPS[name]), "--repeats", "1")
    hvdtrain("bench", *JOBS[name], "--framework", framework, "-np", "2", "--strong", *steps, "--out", str(folder))
    (scale,) = json.loads((folder / "bench.json").read_text())["scales"]
    return scale["median_ms"] / 1e3, scale["memory_bytes"]


def is_right(ratios):
    step, memory = (statistics.median(values) for values in zip(*ratios, strict=True))
    return abs(step - 1) <= STEP and abs(memory - 1) <= MEMORY


@pytest.mark.alone
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@pytest.mark.parametrize("name", JOBS)
def test_plan_foretells_what_bench_measures_on_two_ranks(name, framework, tmp_path, capsys):
    require(framework)
    before = {path.name for path in PROJECT.iterdir()}
    ratios = []
    while len(ratios) < ATTEMPTS and not (len(ratios) % 2 and is_right(ratios)):  # of two, the median is the mean
        (told, memory), (took, held) = (ask(name, framework, tmp_path) for ask in (planned, measured))
        ratios.append((told / took, memory / held))
    with capsys.disabled():
        print(f"\n{name} in {framework}, planned over measured: step, memory {ratios}")
    assert is_right(ratios), ratios
    assert {path.name for path in PROJECT.iterdir()} == before
