"""Run the probe on every host at once, and the allreduce over them; nothing here waits without a limit."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.doctor import probe
from hvdtrain.doctor.allreduce import MARK
from hvdtrain.launch.hosts import Host
from hvdtrain.launch.mpirun import LaunchRequest, build_mpirun_command, find_added
from hvdtrain.launch.ssh import SSH_ARGS

#: Longer than all that the probe may wait for itself.
PROBE_S = 100
ALLREDUCE_S = 120
_CLOCK_LOOKS = 5
_SSH_FAILED = 255
_OWN_SSH_ARGS = "OMPI_MCA_plm_rsh_args"
_SOURCE = Path(probe.__file__).read_text()


@dataclass(frozen=True)
class Answer:
    """What one host told.

    Attributes:
        facts: The probe's; None where it could not be run.
        problem: Why not.
        is_reached: Whether ssh got through, so that the problem is the probe's own.
        clock_s: Seconds that its clock is ahead of the one here.
        clock_error_s: How far off that may be.
    """

    facts: Mapping[str, Any] | None
    problem: str = ""
    is_reached: bool = True
    clock_s: float = 0.0
    clock_error_s: float = 0.0


def ask_hosts(hosts: Sequence[Host], wanted: Mapping[str, Any], limit_s: int = PROBE_S) -> list[Answer]:
    """Run the probe on each host by this interpreter's path, over ssh where it is not this one; see `probe.collect`."""
    # What mpirun is told of ssh in a way of its own, as the MPI Operator does, holds for the probe too.
    ssh = ["ssh", *SSH_ARGS, *shlex.split(os.environ.get(_OWN_SSH_ARGS, ""))]
    told = json.dumps({**wanted, "limit_s": limit_s})
    words = [sys.executable, "-c", _SOURCE, told]
    commands = [words if host.is_local else [*ssh, host.name, shlex.join(words)] for host in hosts]
    with ThreadPoolExecutor(max_workers=64) as pool:
        return list(pool.map(lambda command: ask_host(command, limit_s), commands))


def ask_host(command: Sequence[str], limit_s: float) -> Answer:
    """Run one probe: compare clocks first, then take its facts; an answer comes within about ``limit_s``."""
    try:
        process = subprocess.Popen(  # noqa: S603  # a name is never an option, see hosts.py
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        return Answer(None, str(error))
    timer = threading.Timer(limit_s, process.kill)
    timer.start()
    try:
        clock_s, clock_error_s = _compare_clocks(process)
        out, err = process.communicate("\n")
    except (ValueError, OSError):  # its end of the pipe is closed: it has failed
        out, err = process.communicate()
        clock_s = clock_error_s = 0.0
    finally:
        timer.cancel()
    if process.returncode == -signal.SIGKILL:
        return Answer(None, f"silent for {limit_s:g} s", is_reached=False)
    with suppress(ValueError, IndexError):
        return Answer(json.loads(out.splitlines()[-1]), clock_s=clock_s, clock_error_s=clock_error_s)
    last = (err.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    return Answer(None, last.strip(" ."), is_reached=process.returncode != _SSH_FAILED)


def _compare_clocks(process: subprocess.Popen[str]) -> tuple[float, float]:
    """Return how far the probe's clock is ahead and how wrong that may be, from the quickest of some looks.

    Raises:
        ValueError: It answers no time.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    looks = []
    for _ in range(_CLOCK_LOOKS):
        asked = time.time()
        process.stdin.write("clock\n")
        process.stdin.flush()
        there = float(process.stdout.readline())
        here = time.time()
        looks.append(((here - asked) / 2, there - (asked + here) / 2))
    error_s, ahead_s = min(looks)
    return ahead_s, error_s


def run_allreduce(request: LaunchRequest, flavour: str, limit_s: float = ALLREDUCE_S) -> dict[str, Any] | str:
    """Measure over the ranks of a request; return what the root tells, or why there is nothing."""
    environ = {**os.environ, **find_added(request, flavour, os.environ)}
    process = subprocess.Popen(  # noqa: S603  # our own program
        build_mpirun_command(request, flavour),
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return f"not done in {limit_s:g} s"
    told = [line.partition(MARK)[2] for line in out.splitlines() if MARK in line]
    if process.returncode == 0 and told:
        return dict(json.loads(told[-1]))
    lines = [line.strip() for line in out.splitlines() if line.strip(" -=")]
    named = [line for line in lines if "error" in line.lower()]
    return (named or lines or [f"exit code {process.returncode}"])[0]


def _end(process: subprocess.Popen[str]) -> None:
    """End mpirun so that it can end its ranks on other hosts, too; what is left of it is killed."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
