"""Slow wires to one host: all frames late, or few bytes a second."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.hosts import Cluster
from tests.harness import run_command, start_command

DELAY = Path(__file__).with_name("delay.py")
HOSTS = ("head", "worker1", "worker2")


@contextmanager
def late_frames(cluster: Cluster, host: str, *, delay_s: float) -> Iterator[None]:
    """Bring every frame from and to ``host`` late by ``delay_s``.

    The host's interface is taken off the bridge; a pair of interfaces takes its place, and ``delay.py`` carries the
    frames between. Whole frames with their checksums are needed for that, so the hosts may leave neither to hardware.
    """
    outside = _outside(cluster, host)
    bridge = Path(f"/sys/class/net/{outside}/master").resolve().name
    near, far = f"near{os.getpid()}", f"far{os.getpid()}"
    for name in HOSTS:
        _inside(cluster, name, "ethtool", "-K", "eth0", "tx", "off", "gro", "off")
    _do("ip", "link", "add", near, "type", "veth", "peer", "name", far)
    try:
        _do("ip", "link", "set", far, "master", bridge, "up")
        _do("ip", "link", "set", near, "up")
        _do("ip", "link", "set", outside, "nomaster")
        with start_command([sys.executable, str(DELAY), outside, near, str(delay_s)]):
            yield
    finally:
        _do("ip", "link", "del", near)
        _do("ip", "link", "set", outside, "master", bridge)


@contextmanager
def narrow(cluster: Cluster, host: str, *, rate: str) -> Iterator[None]:
    """Let ``rate`` (in tc's words) through from ``host``, and as much to it."""
    outside = _outside(cluster, host)
    bucket = ["tbf", "rate", rate, "burst", "32kbit", "latency", "400ms"]
    _do("tc", "qdisc", "add", "dev", outside, "root", *bucket)
    _inside(cluster, host, "tc", "qdisc", "add", "dev", "eth0", "root", *bucket)
    try:
        yield
    finally:
        _do("tc", "qdisc", "del", "dev", outside, "root")
        _inside(cluster, host, "tc", "qdisc", "del", "dev", "eth0", "root")


def _outside(cluster: Cluster, host: str) -> str:
    """Return this machine's end of a host's interface."""
    number = cluster.run(host, "cat", "/sys/class/net/eth0/iflink").stdout.strip()
    links = Path("/sys/class/net").iterdir()
    return next(link.name for link in links if (link / "ifindex").read_text().strip() == number)


def _inside(cluster: Cluster, host: str, *words: str) -> None:
    """Run a program of this machine in a host's network: the image needs neither the tools nor the right."""
    state = ["docker", "inspect", "--format", "{{.State.Pid}}", cluster.container(host)]
    pid = run_command(state, timeout_s=60).stdout.strip()
    _do("nsenter", "--target", pid, "--net", *words)


def _do(*words: str) -> None:
    finished = run_command(words, timeout_s=60)
    assert finished.returncode == 0, f"{' '.join(words)}\n{finished.output}"
