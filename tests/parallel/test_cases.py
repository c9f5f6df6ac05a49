"""The cases with their right values: in ranks through the library, and through the program where it is about that."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from hvdtrain.checkpoint import load
from tests.harness import in_company, mpirun, require, run_command, run_ranks
from tests.parallel.commands import (
    BIN,
    FRAMEWORKS,
    JOBS,
    TIMEOUT_S,
    limited,
    own_stderr,
    require_success,
    row_lines,
    train,
)

RANKED = "tests/parallel/ranked"


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    require(request.param)
    return request.param


#: For what no framework takes part in.
with_one_framework = pytest.mark.parametrize("framework", ["torch"], indirect=True)


@pytest.fixture
def options(framework, tmp_path):
    return ("--framework", framework, "--run-dir", str(tmp_path / "run"))


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_toy_cases_have_their_values(framework, num_ranks):
    arguments = {"num_ranks": num_ranks, "timeout_s": TIMEOUT_S, "args": ("--adapter", framework)}
    run_ranks(f"{RANKED}/test_toy_cases.py", **arguments)


@pytest.mark.parametrize("num_ranks", [2])
def test_toy_models_have_their_values(framework, num_ranks):
    arguments = {"num_ranks": num_ranks, "timeout_s": TIMEOUT_S, "args": ("--adapter", framework)}
    run_ranks(f"{RANKED}/test_toy_models.py", env={"OMP_NUM_THREADS": None}, **arguments)


# ---------------------------------------------------------------- 12, 54: one reduction per parameter and step


def test_case_12_clipping_keeps_one_reduction_per_parameter_and_step(options, tmp_path):
    timeline = tmp_path / "timeline.json"
    steps = ("--clip-norm", "0.01", "--max-steps", "3", "--log-every-steps", "1")
    finished = train("images.py", *options, *steps, num_ranks=2, env={"HOROVOD_TIMELINE": str(timeline)})
    require_success(finished)
    # Four parameters and the step tensor, once in each of three steps.
    assert sorted(_reductions(timeline).values()) == [3] * 5
    lines = row_lines(finished)
    assert [re.match(r"train epoch 1  step (\d)  ", line)[1] for line in lines] == ["1", "2", "3"]
    assert finished.stdout == ""
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert min(row["grad_norm"] for row in rows) > 0.01  # every step was clipped


def _reductions(timeline: Path) -> dict[str, int]:
    """Return how often each tensor was reduced, by name."""
    names, counts = {}, {}
    for event in json.loads(timeline.read_text()):
        if event.get("name") == "process_name":
            names[event["pid"]] = event["args"].get("name", "")
        elif event.get("ph") == "B" and event.get("name") == "ALLREDUCE":
            counts[event["pid"]] = counts.get(event["pid"], 0) + 1
    return {names[pid]: count for pid, count in counts.items()}


def test_case_54_timeline_that_cannot_be_written_is_refused_before_training(options, tmp_path):
    finished = train("toy.py", *options, num_ranks=2, env={"HOROVOD_TIMELINE": str(tmp_path)})
    assert own_stderr(finished) == (
        f"hvdtrain: error: start: HOROVOD_TIMELINE must name a file that can be written, got '{tmp_path}' (Is a "
        "directory). Name a file, such as timeline.json, in a folder that exists."
    )
    assert finished.returncode == 2
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- 48, 53: what a process loads


@pytest.fixture(scope="module")
def nothing_there(tmp_path_factory):
    """An environment in which no framework and no MPI can be imported."""
    folder = tmp_path_factory.mktemp("nothing")
    for name in ("torch", "tensorflow", "keras", "horovod", "mpi4py"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise ImportError('no {name} here')\n")
    return {"PYTHONPATH": str(folder)}


def test_case_48_import_loads_no_framework_and_no_mpi(nothing_there):
    program = (
        "import sys, hvdtrain\n"
        "hvdtrain.TrainConfig(), hvdtrain.Callback, hvdtrain.Stream\n"
        "print({'torch', 'tensorflow', 'keras', 'horovod', 'mpi4py'} & set(sys.modules))"
    )
    finished = run_command([sys.executable, "-c", program], **limited({"env": nothing_there}))
    assert (finished.returncode, finished.output) == (0, "set()\n")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"], ["launch", "--help"]])
def test_case_48_help_needs_no_framework_and_no_mpi(nothing_there, words):
    finished = run_command([str(BIN / "hvdtrain"), *words], **limited({"env": nothing_there}))
    require_success(finished)
    assert finished.stderr == ""
    assert "hvdtrain" in finished.stdout


@with_one_framework
def test_case_53_versions_that_differ_between_ranks_are_refused(options, tmp_path):
    from importlib.metadata import version

    package = "horovod"
    info = tmp_path / "other" / f"{package}-9.9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 9.9.9\n")
    words = [sys.executable, "-m", "hvdtrain", "train", str(JOBS / "toy.py"), *options]
    finished = mpirun(1, *words, ":", "-np", "1", "env", f"PYTHONPATH={info.parent}", *words, **limited({}))
    assert own_stderr(finished) == (
        f"hvdtrain: error: versions: ranks must agree on {package} (rank 0 has {version(package)!r}, rank 1 has "
        "'9.9.9'). Install the same versions on every host."
    )
    assert finished.returncode == 2
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


# ---------------------------------------------------------------- 56, 57: once per run, once per host


def test_case_56_two_ranks_print_and_write_each_line_once(options, tmp_path):
    finished = train("toy.py", *options, num_ranks=2)
    require_success(finished)
    told = own_stderr(finished).splitlines()
    assert len(set(told)) == len(told) == 9 + 8 + 9  # header, rows, closing table
    lines = [" ".join(line.split()[:5]) for line in row_lines(finished)]
    steps = [f"train epoch {1 + (step > 3)} step {step}" for step in range(1, 7)]
    assert lines == [*steps[:3], "eval epoch 1 step 3", *steps[3:], "eval epoch 2 step 6"]
    assert finished.stdout == ""
    names = [path.name for path in (tmp_path / "run").iterdir()]
    assert sum(name.startswith("events.out.tfevents.") for name in names) == 1
    # What a framework says while it starts is kept where there is anything.
    assert sorted(name for name in names if "tfevents" not in name and name != "startup.log") == [
        "checkpoints",
        "config.json",
        "metrics.jsonl",
        "summary.json",
    ]
    assert load(tmp_path / "run" / "checkpoints" / "step-00000006").state.weights["w"] == -15.5


@with_one_framework
def test_case_57_one_process_per_host_prepares_and_the_others_wait(options, tmp_path):
    env = {"HVDTRAIN_TEST_FOLDER": str(tmp_path)}
    require_success(train("prepares.py", *options, num_ranks=2, env=env))
    assert len((tmp_path / "calls").read_text().split()) == 1
    # Four samples 1, 2, 3, 6 twice, at the rate 0.5.
    assert load(tmp_path / "run" / "checkpoints" / "step-00000002").state.weights["w"] == -3.0


@with_one_framework
def test_case_57_failed_preparation_ends_all_ranks_with_its_traceback_once(options, tmp_path):
    env = {"HVDTRAIN_TEST_FOLDER": str(tmp_path), "HVDTRAIN_TEST_FAILS": "1"}
    finished = train("prepares.py", *options, num_ranks=2, env=env, timeout_s=in_company(30))
    assert finished.returncode == 1
    assert finished.stderr.count('raise OSError("the download broke off")') == 1, finished.stderr
    assert finished.stderr.count("OSError: the download broke off [rank 0 of 2]") == 1, finished.stderr
    assert finished.stderr.count("Traceback") == 1, finished.stderr
    assert len((tmp_path / "calls").read_text().split()) == 1
