"""A slow network makes a run slow, and nothing else."""

from __future__ import annotations

from tests.cluster.hosts import wait_until
from tests.cluster.wire import late_frames, narrow
from tests.parallel.distance import TOLERANCE, largest_distance

DELAY_S = 0.02
#: Opens a connection: one frame there and one back.
ROUND_TRIP = """
import socket, time
began = time.monotonic()
socket.create_connection(("worker2", 2222)).close()
print(time.monotonic() - began)
"""
MEGABYTE = (
    "began=$(date +%s%N); ssh worker2 head -c 1000000 /dev/zero | wc -c; echo $((($(date +%s%N) - began) / 1000))"
)


def test_late_frames_and_then_a_narrow_wire_do_no_harm(cluster, one_process):
    expected = one_process("torch")
    run = "slow-network"
    with cluster.launch(*cluster.train(run)) as launch:
        with late_frames(cluster, "worker2", delay_s=DELAY_S):
            wait_until(lambda: cluster.steps(run), launch)
            late = cluster.steps(run)
            assert round_trip_s(cluster) >= 2 * DELAY_S
        with narrow(cluster, "worker2", rate="10mbit"):
            assert megabyte_s(cluster) >= 0.7
            finished = launch.finish(timeout_s=300)
    assert finished.returncode == 0, finished.output
    assert late[-1] < 69
    assert cluster.summary(run)["size"] == 4
    assert largest_distance(cluster.weights(run), expected) < TOLERANCE


def test_network_is_quick_when_nothing_slows_it(cluster):
    # So that the two figures above do come from the wire.
    assert min(round_trip_s(cluster) for _ in range(5)) < 2 * DELAY_S
    assert min(megabyte_s(cluster) for _ in range(3)) < 0.7


def round_trip_s(cluster):
    return float(cluster.run("worker1", "python", "-c", ROUND_TRIP).stdout)


def megabyte_s(cluster):
    num_bytes, microseconds = cluster.run("worker1", "bash", "-c", MEGABYTE).stdout.split()
    assert num_bytes == "1000000"
    return int(microseconds) / 1e6
