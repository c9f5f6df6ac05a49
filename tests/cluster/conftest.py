"""One cluster for all tests of this ring; each test finds it whole and at rest, and must leave nothing running."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.cluster.engine import ensure_base_image, offer_to_build, running_engine
from tests.cluster.hosts import HVDTRAIN, Cluster, left_of
from tests.harness import require, run_command

HOSTS = ("head", "worker1", "worker2")
REST_S = 20.0


@pytest.fixture(scope="session")
def engine(tmp_path_factory):
    with running_engine(tmp_path_factory.mktemp("engine") / "dockerd.log"):
        require("cluster")
        ensure_base_image()
        yield


@pytest.fixture(scope="session")
def shared_cluster(engine, tmp_path_factory):
    offer_to_build()
    runs = tmp_path_factory.mktemp("cluster") / "runs"
    cluster = Cluster(f"hvdtrain-test-{os.getpid()}", runs)
    try:
        cluster.up()
        shutil.copy(Path(__file__).parent / "jobs/slow_digits.py", runs)
        yield cluster
    finally:
        down = cluster.script("down")
    assert down.returncode == 0, down.output
    assert left_of(cluster) == []


@pytest.fixture
def cluster(shared_cluster):
    if any(not is_running(shared_cluster, host) for host in HOSTS):
        shared_cluster.up("--no-build")
    yield shared_cluster
    deadline = time.monotonic() + REST_S
    while (running := programs(shared_cluster)) and time.monotonic() < deadline:
        time.sleep(0.5)
    if running:
        run_command(["docker", "restart", "-t", "0", *map(shared_cluster.container, HOSTS)], timeout_s=60)
        shared_cluster.up("--no-build")
    assert running == {}


def is_running(cluster: Cluster, host: str) -> bool:
    words = ["docker", "inspect", "--format", "{{.State.Running}}", cluster.container(host)]
    return run_command(words, timeout_s=60).stdout.strip() == "true"


def programs(cluster: Cluster) -> dict[str, list[str]]:
    found = {host: cluster.programs(host) for host in HOSTS if is_running(cluster, host)}
    return {host: running for host, running in found.items() if running}


@pytest.fixture(scope="session")
def one_process(shared_cluster):
    """A function of a framework: the weights of three epochs of digits in one process, trained once."""
    trained = {}

    def weights(framework):
        require(framework)
        if framework not in trained:
            words = [
                HVDTRAIN,
                "train",
                "jobs/digits.py",
                "--framework",
                framework,
                "--run-dir",
                f"runs/one-{framework}",
            ]
            finished = shared_cluster.run("head", *words, "--epochs", "3")
            assert finished.returncode == 0, finished.output
            trained[framework] = shared_cluster.weights(f"one-{framework}")
        return trained[framework]

    return weights
