"""The files for Slurm and Kubernetes are what ``hvdtrain launch --print`` prints, valid, and do what they say."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from tests.harness import run_command, start_command

ROOT = Path(__file__).parents[2]
SBATCH = ROOT / "examples/slurm.sbatch"
MPIJOB = ROOT / "examples/mpijob.yaml"
HVDTRAIN = [sys.executable, "-m", "hvdtrain"]
TIMEOUT_S = 60


def load_schema():
    """Return the model beside this file; tests of this folder are no package."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("mpijob_schema", Path(__file__).with_name("mpijob_schema.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules["mpijob_schema"] = module  # pydantic looks names up there
    spec.loader.exec_module(module)
    return module.MPIJob


def print_form(form, command, hosts="worker1:2,worker2:2"):
    words = [*HVDTRAIN, "launch", "-np", "4", "-H", hosts, "--print", form, "--", *command]
    finished = run_command(words, timeout_s=TIMEOUT_S, cwd=ROOT)
    assert finished.returncode == 0, finished.output
    return finished.stdout


# ---------------------------------------------------------------- Kubernetes
def test_mpijob_is_what_print_prints_and_valid():
    job = yaml.safe_load(MPIJOB.read_text())
    load_schema().model_validate(job)
    launch, worker = (job["spec"]["mpiReplicaSpecs"][kind] for kind in ("Launcher", "Worker"))
    words = launch["template"]["spec"]["containers"][0]["command"]
    assert print_form("mpijob", words[words.index("--") + 1 :]) == MPIJOB.read_text()
    assert words[words.index("-np") + 1] == str(worker["replicas"] * job["spec"]["slotsPerWorker"])


def without(*path):
    def change(job):
        for name in path[:-1]:
            job = job[name]
        del job[path[-1]]

    return change


def with_value(value, *path):
    def change(job):
        for name in path[:-1]:
            job = job[name]
        job[path[-1]] = value

    return change


SPECS = ("spec", "mpiReplicaSpecs")
POD = (*SPECS, "Worker", "template", "spec")


@pytest.mark.parametrize(
    "change",
    [
        with_value("kubeflow.org/v1", "apiVersion"),
        with_value("Upper_Case", "metadata", "name"),
        with_value("x" * 60, "metadata", "name"),
        with_value("2", "spec", "slotsPerWorker"),
        with_value("Always", "spec", "runPolicy", "cleanPodPolicy"),
        with_value("Running", "spec", "cleanPodPolicy"),  # it stood here in v1
        without("spec", "runPolicy", "cleanPodPolicy"),
        without(*SPECS, "Launcher"),
        with_value(2, *SPECS, "Launcher", "replicas"),
        with_value(0, *SPECS, "Worker", "replicas"),
        with_value("Always", *SPECS, "Worker", "restartPolicy"),
        without(*SPECS, "Worker", "template", "spec", "containers"),
        with_value([1], *POD, "containers", 0, "args"),
        with_value([], *POD, "volumes"),
        with_value("two", *POD, "containers", 0, "resources", "limits", "cpu"),
    ],
)
def test_mpijob_with_a_fault_is_refused(change):
    job = yaml.safe_load(MPIJOB.read_text())
    change(job)
    with pytest.raises(ValidationError):
        load_schema().model_validate(job)


# ---------------------------------------------------------------- Slurm
def slurm_command():
    """Return the program that the batch file starts, as words."""
    (line,) = [line for line in SBATCH.read_text().splitlines() if line.startswith("hvdtrain launch")]
    return shlex.split(line.removesuffix("&").partition(" -- ")[2])


def test_sbatch_is_what_print_prints():
    printed = print_form("slurm", slurm_command()).replace("#SBATCH --nodelist=worker1,worker2\n", "")
    assert printed.replace(str(Path(sys.executable).parent), "$SLURM_SUBMIT_DIR/.venv/bin") == SBATCH.read_text()


def test_sbatch_is_valid_bash():
    subprocess.run(["bash", "-n", str(SBATCH)], check=True, timeout=20)


def stand_ins(folder, mpirun):
    """Make a scontrol that lists two nodes and an mpirun that records its arguments; return the environment."""
    programs = {
        "scontrol": f'echo "$*" >>{folder}/scontrol.log; printf "node7\\nnode9\\n"',
        "mpirun": f'[ "$1" != --version ] || {{ echo "mpirun (Open MPI) 4.1.4"; exit 0; }}\n'
        f'printf "%s\\n" "$@" >{folder}/mpirun.log\n{mpirun}',
    }
    bin_folder = folder / ".venv/bin"
    bin_folder.mkdir(parents=True)
    for name, body in programs.items():
        (bin_folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (bin_folder / name).chmod(0o755)
    (bin_folder / "hvdtrain").symlink_to(Path(sys.executable).with_name("hvdtrain"))
    return {
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": "node[7,9]",
        "SLURM_NTASKS_PER_NODE": "2",
        "XDG_STATE_HOME": str(folder / "state"),
    }


@pytest.mark.parametrize("code", [0, 5])
def test_sbatch_starts_its_job_on_the_nodes_of_the_allocation(tmp_path, code):
    env = stand_ins(tmp_path, f"exit {code}")
    finished = run_command(["bash", str(SBATCH)], timeout_s=TIMEOUT_S, env=env, cwd=ROOT)
    assert finished.returncode == code, finished.output
    assert (tmp_path / "scontrol.log").read_text() == "show hostnames node[7,9]\n"
    words = (tmp_path / "mpirun.log").read_text().splitlines()
    assert words[words.index("-np") + 1] == "4"
    assert words[words.index("-H") + 1] == "node7:2,node9:2"
    # Slurm starts mpirun's daemons, so no option of ssh may be there.
    assert not any("BatchMode" in word for word in words)
    assert words[-len(slurm_command()) :][1:] == slurm_command()[1:]


@pytest.mark.parametrize("code", [143, 0])
def test_sbatch_passes_slurms_signal_on_and_waits_for_the_end(tmp_path, code):
    saves = (
        f"trap 'sleep 1; touch {tmp_path}/saved; exit {code}' USR1; touch {tmp_path}/up\nwhile :; do sleep 0.1; done"
    )
    env = stand_ins(tmp_path, saves)
    with start_command(["bash", str(SBATCH)], env=env, cwd=ROOT) as launch:
        limit = time.monotonic() + TIMEOUT_S
        while not (tmp_path / "up").exists():
            assert time.monotonic() < limit, launch.stderr()
            time.sleep(0.1)
        os.kill(launch.process.pid, signal.SIGTERM)  # to the batch shell alone, as --signal=B: does
        finished = launch.finish(timeout_s=TIMEOUT_S)
    assert (finished.returncode, (tmp_path / "saved").exists()) == (code, True)
