"""Exact mpirun commands and messages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hvdtrain.cli.launch import CONTEXT
from hvdtrain.cli.launch import launch as launch_command
from hvdtrain.errors import ConfigError
from hvdtrain.launch import restarts as restarts_module
from hvdtrain.launch.hosts import Host
from hvdtrain.launch.mpirun import (
    SETTINGS,
    LaunchRequest,
    build_mpirun_command,
    detect_flavour,
    find_added,
    find_flavour,
    make_request,
    resolve_program,
)
from tests.harness import run_command

TIME_LIMIT_S = 50.0
SSH = "-o BatchMode=yes -o ConnectTimeout=10"
TWO_LOCAL = (Host("localhost", 2),)
TWO_REMOTE = (Host("worker1", 2), Host("worker2", 2))

# Requests


def test_request_with_too_few_slots_raises():
    with pytest.raises(ConfigError) as caught:
        LaunchRequest(2, (Host("localhost", 1),), ("true",))
    assert str(caught.value) == (
        "launch: -np must be at most the slots of all hosts, got -np 2 and 1 in 'localhost:1'. "
        "Give the hosts more slots, for example -H localhost:2."
    )


def test_request_with_host_named_twice_raises():
    with pytest.raises(ConfigError) as caught:
        LaunchRequest(2, (Host("a", 1), Host("b", 1), Host("a", 2)), ("true",))
    assert str(caught.value) == (
        "launch: each host must be named once, got 'a' 2 times. Add up its slots, for example -H a:3."
    )


def test_request_without_ranks_and_program_names_both():
    with pytest.raises(ConfigError) as caught:
        make_request(0, [])
    assert str(caught.value) == (
        "launch: -np must be at least 1, got 0. For example: hvdtrain launch -np 2 -- python train.py. "
        "a program must follow --, got none. For example: hvdtrain launch -np 2 -- python train.py."
    )


def test_make_request_with_hosts_and_hostfile_raises():
    with pytest.raises(ConfigError) as caught:
        make_request(2, ["true"], hosts="a:2", hostfile=Path("hosts"))
    assert str(caught.value) == (
        "launch: hosts must come from one option, got -H 'a:2' and --hostfile 'hosts'. Leave one of them out."
    )


def test_make_request_with_missing_hostfile_raises():
    with pytest.raises(ConfigError) as caught:
        make_request(2, ["true"], hostfile=Path("no-such-file"))
    assert str(caught.value) == (
        "launch: --hostfile must be a readable text file, got 'no-such-file' "
        "([Errno 2] No such file or directory: 'no-such-file'). Check the path."
    )


def test_make_request_with_hostfile_reads_it(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("worker1 slots=2\n")
    assert make_request(2, ["true"], hostfile=path).hosts == (Host("worker1", 2),)


def test_make_request_without_hosts_runs_more_ranks_than_cores_here():
    request = make_request(500, ["true"], environ={})
    assert request.hosts == (Host("localhost", 500),)
    assert not request.has_ssh


def test_make_request_exports_what_ranks_need_and_nothing_else():
    environ = {
        **{"HOROVOD_CYCLE_TIME": "1", "OMP_NUM_THREADS": "1", "HVDTRAIN_X": "1", "TF_X": "1", "NCCL_DEBUG": "INFO"},
        **{"MKL_X": "1", "CUDA_VISIBLE_DEVICES": "0", "KERAS_BACKEND": "tensorflow", "PYTHONPATH": "/a"},
        **{"PATH": "/bin", "LD_LIBRARY_PATH": "/lib", "HOME": "/root", "SECRET": "x", "MY_PATH": "/b", "TF_%%": "x"},
    }
    assert make_request(1, ["true"], environ=environ).exported == (
        *("CUDA_VISIBLE_DEVICES", "GLIBC_TUNABLES", "HOROVOD_CYCLE_TIME", "HVDTRAIN_X"),
        *(
            "KERAS_BACKEND",
            "LD_LIBRARY_PATH",
            "MKL_X",
            "NCCL_DEBUG",
            "OMPI_MCA_mpi_yield_when_idle",
            "OMP_NUM_THREADS",
            "PATH",
            "PYTHONPATH",
            "TF_X",
        ),
    )


def test_make_request_with_remote_host_uses_ssh():
    assert make_request(2, ["true"], hosts="localhost:1,worker1:1", environ={}).has_ssh


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "OMPI_MCA_plm_rsh_args", "HYDRA_LAUNCHER", "I_MPI_HYDRA_BOOTSTRAP"])
def test_make_request_with_transport_of_the_user_leaves_ssh_alone(name):
    assert not make_request(1, ["true"], hosts="worker1:1", environ={name: "x"}).has_ssh


@pytest.mark.parametrize(
    ("typed", "resolved"),
    [
        (["python", "a.py", "python"], (sys.executable, "a.py", "python")),
        (["python3", "a.py"], (sys.executable, "a.py")),
        (["hvdtrain", "train", "job.py"], (sys.executable, "-m", "hvdtrain", "train", "job.py")),
        (["/opt/bin/python", "a.py"], ("/opt/bin/python", "a.py")),
        (["python3.8", "a.py"], ("python3.8", "a.py")),
    ],
)
def test_resolve_program_replaces_bare_names_only(typed, resolved):
    assert resolve_program(typed) == resolved


# Commands


@pytest.mark.parametrize(
    ("text", "flavour"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n", "openmpi4"),
        ("mpirun.real (OpenRTE) 4.0.3\n", "openmpi4"),
        ("mpirun (Open MPI) 5.0.11\n", "openmpi5"),
        ("HYDRA build details:\n    Version:                                 5.0.2\n", "mpich"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\n", "intel"),
    ],
)
def test_detect_flavour_knows_four_kinds(text, flavour):
    assert detect_flavour(text) == flavour


def test_detect_flavour_with_unknown_mpirun_raises():
    with pytest.raises(ConfigError) as caught:
        detect_flavour("LAM 7.1\nmore")
    assert str(caught.value) == (
        "launch: mpirun must be of Open MPI, MPICH or Intel MPI, got 'LAM 7.1'. "
        "Put one of these first on PATH; docker/install.sh installs Open MPI."
    )


def test_build_for_openmpi4_on_this_machine_as_root():
    request = LaunchRequest(2, TWO_LOCAL, ("/p", "a b.py"), exported=("OMP_NUM_THREADS", "PATH"), is_root=True)
    assert build_mpirun_command(request, "openmpi4") == [
        *("mpirun", "--allow-run-as-root", "-np", "2", "-H", "localhost:2", "--bind-to", "none", "--map-by", "slot"),
        *("-mca", "pml", "ob1", "-mca", "btl", "^openib"),
        *("-x", "OMP_NUM_THREADS", "-x", "PATH", "/p", "a b.py"),
    ]


def test_build_for_openmpi4_on_other_hosts_limits_ssh():
    request = LaunchRequest(3, TWO_REMOTE, ("/p",), exported=("PATH",), has_ssh=True)
    assert build_mpirun_command(request, "openmpi4") == [
        *("mpirun", "-np", "3", "-H", "worker1:2,worker2:2", "--bind-to", "none", "--map-by", "slot"),
        *("-mca", "pml", "ob1", "-mca", "btl", "^openib", "-mca", "plm_rsh_args", SSH, "-x", "PATH", "/p"),
    ]


def test_build_for_openmpi5_on_other_hosts_limits_ssh():
    request = LaunchRequest(3, TWO_REMOTE, ("/p",), exported=("PATH",), has_ssh=True, is_root=True)
    assert build_mpirun_command(request, "openmpi5") == [
        *("mpirun", "--allow-run-as-root", "-np", "3", "-H", "worker1:2,worker2:2"),
        *("--bind-to", "none", "--map-by", "slot", "--prtemca", "plm_ssh_args", SSH, "-x", "PATH", "/p"),
    ]


def test_build_for_mpich_passes_names_as_one_list():
    request = LaunchRequest(3, TWO_REMOTE, ("/p",), exported=("OMP_NUM_THREADS", "PATH"), has_ssh=True, is_root=True)
    assert build_mpirun_command(request, "mpich") == [
        *("mpirun", "-np", "3", "-hosts", "worker1:2,worker2:2", "-bind-to", "none", "-map-by", "slot"),
        *("-genvlist", "OMP_NUM_THREADS,PATH", "/p"),
    ]


def test_build_for_intel_gives_each_host_its_group_of_ranks():
    hosts = (*TWO_REMOTE, Host("worker3", 2))
    request = LaunchRequest(3, hosts, ("/p", "x"), exported=("PATH",), has_ssh=True)
    assert build_mpirun_command(request, "intel") == [
        *("mpirun", "-bootstrap", "ssh", "-bootstrap-exec-args", SSH, "-genvlist", "PATH", "-genv", "I_MPI_PIN", "0"),
        *("-n", "2", "-host", "worker1", "/p", "x", ":", "-n", "1", "-host", "worker2", "/p", "x"),
    ]


def test_find_added_sets_what_makes_ranks_fast_unless_the_user_decided():
    request = LaunchRequest(2, TWO_LOCAL, ("/p",))
    assert find_added(request, "openmpi4", {}) == SETTINGS
    assert find_added(request, "openmpi4", dict.fromkeys(SETTINGS, "own")) == {}


def test_find_added_for_mpich_limits_ssh():
    request = LaunchRequest(2, TWO_REMOTE, ("/p",), has_ssh=True)
    assert find_added(request, "mpich", SETTINGS) == {"HYDRA_LAUNCHER_EXTRA_ARGS": SSH}


# Before mpirun starts


def test_find_flavour_without_mpirun_raises(monkeypatch):
    monkeypatch.setenv("PATH", "/no-such-folder")
    with pytest.raises(ConfigError) as caught:
        find_flavour()
    assert str(caught.value) == (
        "launch: mpirun must be on PATH, got '/no-such-folder'. "
        "Install it with docker/install.sh, or add its folder to PATH."
    )


def test_import_loads_no_framework_and_no_mpi():
    heavy = "{'torch', 'tensorflow', 'horovod', 'mpi4py', 'numpy'}"
    code = f"import sys, hvdtrain.launch.restarts; print({heavy} & set(sys.modules))"
    done = run_command([sys.executable, "-c", code], timeout_s=TIME_LIMIT_S)
    assert done.stdout == "set()\n"


# The command line


def run_cli(*arguments):
    app = typer.Typer()
    app.callback()(lambda: None)
    app.command("launch", context_settings=CONTEXT)(launch_command)
    return CliRunner().invoke(app, ["launch", *arguments])


@pytest.mark.parametrize(
    "arguments",
    [
        ["-np", "2", "-H", "a:2", "--", "prog", "-np", "9", "--", "-H"],
        ["-np=2", "--hosts", "a:2", "prog", "-np", "9", "--", "-H"],
        ["--num-ranks=2", "-Ha:2", "--", "prog", "-np", "9", "--", "-H"],
    ],
)
def test_cli_leaves_the_options_of_the_program_alone(monkeypatch, arguments):
    requests = []
    monkeypatch.setattr(restarts_module, "run_launch", lambda request, **options: requests.append(request) or 7)
    assert run_cli(*arguments).exit_code == 7
    assert requests[0].num_ranks == 2
    assert requests[0].hosts == (Host("a", 2),)
    assert requests[0].command == ("prog", "-np", "9", "--", "-H")


def test_cli_without_program_propagates_the_error():
    error = run_cli("-np", "2").exception
    assert isinstance(error, ConfigError)
    assert str(error) == (
        "launch: a program must follow --, got none. For example: hvdtrain launch -np 2 -- python train.py."
    )
