"""Two ranks on each of two hosts make the run of one process, whoever launches them."""

from __future__ import annotations

import pytest

from tests.cluster.hosts import wait_until
from tests.parallel.distance import TOLERANCE, largest_distance

#: Every launcher once; TensorFlow takes long to load, and what differs by launcher has no part in it.
LAUNCHES = [("torch", "launch"), ("torch", "horovodrun"), ("tensorflow", "mpirun"), ("tensorflow", "launch")]


@pytest.mark.parametrize(("framework", "launcher"), LAUNCHES)
def test_four_ranks_on_two_hosts_equal_one_process(cluster, one_process, framework, launcher):
    words = ["--framework", framework, "-np", "4", "--launcher", launcher]
    run = f"{framework}-{launcher}"
    with cluster.start_script("run", *words, "--", "--epochs", "3", "--run-dir", f"runs/{run}") as launch:
        wait_until(lambda: cluster.rows(run), launch)
        ranks = {host: ranks_on(cluster, host) for host in ("worker1", "worker2")}
        finished = launch.finish(timeout_s=300)
    assert finished.returncode == 0, finished.output
    assert ranks == {"worker1": 2, "worker2": 2}
    assert cluster.summary(run)["size"] == 4
    assert cluster.summary(run)["ledger"]["train"] == {"once": 1438, "more": 0, "never": 0}
    assert 0 < largest_distance(cluster.weights(run), one_process(framework)) < TOLERANCE


def ranks_on(cluster, host):
    """Return how many processes of a worker are ranks."""
    return sum("python" in line.split()[0] and " train " in line for line in cluster.programs(host))
