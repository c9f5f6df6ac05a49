"""A host that dies in the middle of a run: the run ends where the undisturbed one ends, by itself or by hand."""

from __future__ import annotations

from tests.cluster.hosts import wait_until
from tests.parallel.distance import TOLERANCE, largest_distance

#: The launcher hears of a dead host when its connection breaks, and must not wait for more.
NOTICED_S = 60


def test_restarts_go_on_without_the_dead_host(cluster, one_process):
    expected = one_process("torch")
    options = ["--restarts", "1"]
    with cluster.slowed() as at_full_speed, cluster.launch(*cluster.train("restarted"), options=options) as launch:
        wait_until(lambda: cluster.steps("restarted"), launch)
        assert cluster.script("kill", "worker2").returncode == 0
        at_full_speed()
        finished = launch.finish(timeout_s=300)
    assert finished.returncode == 0, finished.output
    assert "worker2" in finished.output
    assert_ends_like(cluster, "restarted", expected, size=2)


def test_run_without_restarts_is_resumed_by_hand_on_the_host_that_is_left(cluster, one_process):
    expected = one_process("torch")
    with cluster.slowed() as at_full_speed, cluster.launch(*cluster.train("resumed")) as launch:
        wait_until(lambda: cluster.steps("resumed"), launch)
        # The root's host, which is worse.
        assert cluster.script("kill", "worker1").returncode == 0
        at_full_speed()
        finished = launch.finish(timeout_s=NOTICED_S)
    assert finished.returncode != 0, finished.output
    assert "worker1" in finished.output
    assert not (cluster.runs / "resumed/summary.json").exists()
    assert cluster.steps("resumed")[-1] < 69
    assert largest_distance(cluster.weights("resumed"), expected) > TOLERANCE
    with cluster.launch(*cluster.train("resumed", "--resume"), hosts="worker2:2", np=2) as launch:
        finished = launch.finish(timeout_s=300)
    assert finished.returncode == 0, finished.output
    assert_ends_like(cluster, "resumed", expected, size=2)


def assert_ends_like(cluster, run, expected, *, size):
    summary = cluster.summary(run)
    assert (summary["size"], summary["global_step"]) == (size, 69)
    assert summary["ledger"]["train"] == {"once": 1438, "more": 0, "never": 0}
    assert largest_distance(cluster.weights(run), expected) < TOLERANCE
