"""Which hosts answer: a stand-in for ssh tells."""

from __future__ import annotations

import pytest

from hvdtrain.errors import ConfigError
from hvdtrain.launch.hosts import Host
from hvdtrain.launch.mpirun import LaunchRequest
from hvdtrain.launch.restarts import run_launch
from hvdtrain.launch.ssh import find_silent

SSH = "-o BatchMode=yes -o ConnectTimeout=10"


@pytest.fixture
def stand_ins(monkeypatch, tmp_path):
    """An mpirun that only tells its version, and an ssh that reaches worker2."""
    fakes = {
        "mpirun": "echo 'mpirun (Open MPI) 4.1.4'",
        "ssh": 'case "$5" in worker2) exit 0;; esac; echo "ssh: connect to $5: timed out." >&2; exit 255',
    }
    for name, body in fakes.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_run_launch_with_silent_hosts_names_each(stand_ins):
    hosts = (Host("localhost", 1), Host("worker1", 1), Host("worker2", 1), Host("worker3", 1))
    with pytest.raises(ConfigError) as caught:
        run_launch(LaunchRequest(4, hosts, ("/p",), has_ssh=True))
    assert str(caught.value) == (
        "launch: each host must answer ssh without a password, got no answer from "
        "'worker1' (ssh: connect to worker1: timed out), 'worker3' (ssh: connect to worker3: timed out). "
        f"Make this succeed: ssh {SSH} worker1 true."
    )


def test_find_silent_gives_the_reason_of_each(stand_ins):
    told = {name: f"ssh: connect to {name}: timed out" for name in ("worker1", "worker3")}
    assert find_silent(["worker1", "worker2", "worker3"]) == told


def test_without_ssh_nothing_is_asked(monkeypatch):
    monkeypatch.setenv("PATH", "/no-such-folder")
    with pytest.raises(ConfigError, match=r"^launch: ssh must be on PATH, got '/no-such-folder'\."):
        find_silent(["worker1"])
