"""Hosts that share no disk: the checkpoints lie where the root is (case 17)."""

from __future__ import annotations

OWN = "/home/trainer/own"


def train(cluster, hosts, *options):
    words = ["hvdtrain", "train", "jobs/digits.py", "--framework", "torch", "--run-dir", OWN, "--epochs", "2"]
    # A decaying rate would depend on the length of the run, which may then not change.
    constant = ["--decay", "constant", "--save-every-steps", "5"]
    with cluster.launch(*words, *constant, *options, hosts=hosts, np=2) as launch:
        return launch.finish(timeout_s=200)


def steps(cluster, host):
    return cluster.run(host, "bash", "-c", f"ls {OWN}/checkpoints 2>/dev/null | sed s/step-0*//").stdout.split()


def test_root_alone_has_the_checkpoints_and_all_resume_from_them(cluster):
    try:
        finished = train(cluster, "worker1:1,worker2:1", "--max-steps", "10")
        assert finished.returncode == 0, finished.output
        assert steps(cluster, "worker1")[-1] == "10"
        assert steps(cluster, "worker2") == []

        finished = train(cluster, "worker1:1,worker2:1", "--max-steps", "15", "--resume")
        assert finished.returncode == 0, finished.output
        assert "step 10" in finished.output
        assert steps(cluster, "worker1")[-1] == "15"
        assert steps(cluster, "worker2") == []

        # The other way round only a rank that is not the root has them: all start from the first step.
        finished = train(cluster, "worker2:1,worker1:1", "--max-steps", "5", "--resume")
        assert finished.returncode == 0, finished.output
        assert steps(cluster, "worker2") == ["5"]
        assert steps(cluster, "worker1")[-1] == "15"
    finally:
        for host in ("worker1", "worker2"):
            cluster.run(host, "rm", "-rf", OWN)
