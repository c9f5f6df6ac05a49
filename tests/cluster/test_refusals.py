"""What a launch over several hosts refuses, and that it says why before anything hangs."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

import pytest

from tests.cluster.hosts import HVDTRAIN
from tests.harness import run_command

#: The ssh time-out is 10 s, for the login 14; more is a launch that hangs.
REFUSED_S = 40
PACKAGES = "/opt/hvdtrain/.venv/lib/python3.11/site-packages"
TELL = "import os, socket, sys; print(socket.gethostname(), sys.executable, flush=True)"


def launch(cluster, *options, program=("python", "-c", TELL), env=()):
    words = [*env, HVDTRAIN, "launch", "-np", "2", *options, "--", *program]
    return cluster.run("head", *words, timeout_s=REFUSED_S)


def test_host_that_refuses_ssh_and_host_that_says_nothing_are_named(cluster):
    cluster.run("worker1", "rm", "/home/trainer/.ssh/authorized_keys")
    freeze = ["docker", "pause", cluster.container("worker2")]
    try:
        run_command(freeze, timeout_s=60)
        finished = launch(cluster, "-H", "worker1:1,worker2:1")
    finally:
        run_command(["docker", "unpause", cluster.container("worker2")], timeout_s=60)
        cluster.run("worker1", "install", "-m", "600", "/run/hvdtrain/keys/authorized_keys", "/home/trainer/.ssh")
    assert finished.returncode == 2, finished.output
    assert "'worker1' (trainer@worker1: Permission denied (publickey))" in finished.output
    assert "'worker2' (" in finished.output


def test_address_where_no_host_is_fails_within_the_time_out(cluster):
    inspect = ["docker", "network", "inspect", f"{cluster.name}_cluster"]
    network = json.loads(run_command(inspect, timeout_s=60).stdout)[0]["IPAM"]["Config"][0]["Subnet"]
    nobody = str(list(ipaddress.ip_network(network).hosts())[-1])
    finished = launch(cluster, "-H", f"worker1:1,{nobody}:1")
    assert finished.returncode == 2, finished.output
    assert f"got no answer from '{nobody}'" in finished.output
    assert "worker1" not in finished.output


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ("worker1", "must read host:slots with slots of at least 1, got 'worker1'. Write for example -H localhost:2."),
        ("worker1:1", "-np must be at most the slots of all hosts, got -np 2 and 1 in 'worker1:1'"),
        ("worker1:1 worker2:1", "must be separated by commas, got 'worker1:1 worker2:1'. Write for example -H worker1"),
    ],
)
def test_wrong_host_list_is_one_line_with_a_right_example(cluster, hosts, said):
    finished = launch(cluster, "-H", hosts)
    assert finished.returncode == 2
    assert said in finished.output
    assert len(finished.output.splitlines()) == 1


def test_hosts_of_a_commented_file_run_the_launching_interpreter_without_a_path_to_it(cluster):
    text = "# the cluster\n\nworker1 slots=1  # the first\n\nworker2:1\n"
    cluster.run("head", "bash", "-c", f"printf '{text}' >commented")
    finished = launch(cluster, "--hostfile", "commented", env=("env", "PATH=/usr/bin:/bin"))
    assert finished.returncode == 0, finished.output
    python = str(Path(HVDTRAIN).with_name("python"))
    assert sorted(finished.stdout.splitlines()) == [f"worker1 {python}", f"worker2 {python}"]


def test_hosts_with_other_versions_are_refused_with_both(cluster):
    files = {"/opt/hvdtrain/hvdtrain/__init__.py": 's/^__version__ = .*/__version__ = "9.9.9"/'}
    for package in ("torch", "horovod"):
        found = cluster.run("worker2", "bash", "-c", f"ls {PACKAGES}/{package}-*.dist-info/METADATA").stdout.strip()
        files[found] = "s/^Version: .*/Version: 9.9.9/"
    try:
        for path, change in files.items():
            finished = cluster.run("worker2", "sed", "-i.kept", change, path, user="root")
            assert finished.returncode == 0, finished.output
        with cluster.launch(*cluster.train("versions"), hosts="worker1:1,worker2:1", np=2) as started:
            finished = started.finish(timeout_s=120)
    finally:
        for path in files:
            cluster.run("worker2", "mv", f"{path}.kept", path, user="root")
    assert finished.returncode == 2, finished.output
    assert all(name in finished.output for name in ("torch", "horovod", "hvdtrain", "9.9.9", "worker2"))
    assert not (cluster.runs / "versions/checkpoints").exists()
