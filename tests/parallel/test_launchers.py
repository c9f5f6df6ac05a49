"""The same job under every launcher, and under none, is the same run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.harness import require, run_command, start_command
from tests.parallel.commands import (
    BIN,
    FRAMEWORKS,
    JOBS,
    limited,
    read_summary,
    require_success,
    train,
    train_plain,
    without_bin,
)

JOB = str(JOBS / "toy.py")
#: The gradients of the batches 0-3, 4-7, 8-9 are 1.5, 5.5, 8.5, and the rate is 0.5, so an epoch takes 7.75 off w.
EXPECTED = {
    "epoch": 2,
    "global_step": 6,
    "samples_seen": 20,
    # Sums of w x over the second epoch: -7.75 * 6, -8.5 * 22, -11.25 * 17.
    "train": {"loss": (-7.75 * 6 - 8.5 * 22 - 11.25 * 17) / 10},
    "eval": {"loss": -15.5 * 3, "twice": 6.0},
}


@pytest.fixture(scope="module", params=FRAMEWORKS)
def framework(request):
    require(request.param)
    return request.param


@pytest.fixture(scope="module")
def options(framework, tmp_path_factory):
    """A function of a name: options of a run whose folder has that name."""
    folder = tmp_path_factory.mktemp(framework)
    return lambda name: ("--framework", framework, "--run-dir", str(folder / name))


@pytest.fixture(scope="module")
def on_two_ranks(options):
    """The summary of the job under plain mpirun."""
    finished = train("toy.py", *options("mpirun"), num_ranks=2)
    require_success(finished)
    return _summary(options("mpirun"))


@pytest.fixture(scope="module")
def broken_other(framework, tmp_path_factory):
    """A folder in which the framework that is not used cannot be imported."""
    folder = tmp_path_factory.mktemp("broken")
    for name in {"torch": ("tensorflow", "keras"), "tensorflow": ("torch",)}[framework]:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise ImportError('{name} must not be imported')\n")
    return str(folder)


@pytest.fixture(scope="module")
def plain(options, broken_other):
    """The summary of the job without a launcher and without the other framework."""
    require_success(train_plain("toy.py", *options("plain"), env={"PYTHONPATH": broken_other}))
    return _summary(options("plain"))


def _summary(options):
    return read_summary(Path(options[-1]))


def test_mpirun_gives_the_expected_summary(framework, on_two_ranks):
    assert {name: on_two_ranks[name] for name in EXPECTED} == EXPECTED
    assert (on_two_ranks["framework"], on_two_ranks["size"]) == (framework, 2)


def test_horovodrun_gives_the_summary_of_mpirun(options, on_two_ranks):
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    words = [str(BIN / "horovodrun"), "-np", "2", "hvdtrain", "train", JOB, *options("horovodrun")]
    require_success(run_command(words, **limited({"env": {"PATH": path}})))
    assert _summary(options("horovodrun")) == on_two_ranks


def test_hvdtrain_launch_gives_the_summary_of_mpirun(options, on_two_ranks, tmp_path):
    # Through a full path, with the environment's bin taken off PATH (case 53).
    job = str(JOBS / "tells_python.py")
    words = [str(BIN / "hvdtrain"), "launch", "-np", "2", "--", "hvdtrain", "train", job, *options("launch")]
    env = {"PATH": without_bin(), "HVDTRAIN_TEST_FOLDER": str(tmp_path)}
    require_success(run_command(words, **limited({"env": env})))
    assert [(tmp_path / f"python-{rank}").read_text() for rank in (0, 1)] == [str(BIN / "python")] * 2
    assert _summary(options("launch")) == on_two_ranks


def test_plain_run_differs_in_size_only_and_needs_one_framework(on_two_ranks, plain):
    assert plain == {**on_two_ranks, "size": 1}


def test_one_rank_under_mpirun_equals_the_plain_run(options, plain):
    require_success(train("toy.py", *options("one"), num_ranks=1))
    assert _summary(options("one")) == plain


def test_own_script_run_by_python_equals_the_plain_run(framework, options, plain):
    folder = options("script")[-1]
    words = [str(BIN / "python"), str(JOBS / "own_script.py"), framework, folder]
    require_success(run_command(words, **limited({})))
    assert _summary(options("script")) == plain


def test_ranks_that_each_see_size_one_are_refused(tmp_path):
    # As under the mpirun of another MPI, which tells sizes in variables that this one does not read.
    words = [str(BIN / "hvdtrain"), "train", JOB, "--framework", "torch", "--run-dir", str(tmp_path / "run")]
    with (
        start_command(words, env={"PMI_SIZE": "2", "PMI_RANK": "0"}) as root,
        start_command(words, env={"PMI_SIZE": "2", "PMI_RANK": "1"}) as other,
    ):
        codes = [launch.finish(timeout_s=30) for launch in (root, other)]
    assert [finished.returncode for finished in codes] == [2, 2]
    assert "".join(finished.output for finished in codes) == (
        "hvdtrain: error: connect: MPI must see the ranks that the launcher started, got size 1 from MPI and size 2 "
        "from MPICH's or Intel's mpirun. Launch with the mpirun of the MPI that Horovod and mpi4py were built with, by "
        "'hvdtrain launch', 'mpirun' or 'horovodrun --mpi'.\n"
    )
    assert not (tmp_path / "run").exists()


def test_config_json_holds_the_settings_of_the_run(options, on_two_ranks):
    written = json.loads((Path(options("mpirun")[-1]) / "config.json").read_text())
    assert (written["epochs"], written["global_batch_size"], written["learning_rate"]) == (2, 4, 0.5)
