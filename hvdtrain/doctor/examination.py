"""The whole examination: probe the hosts, measure over them, and return the rows of the report."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.doctor.ask import ask_hosts, run_allreduce
from hvdtrain.doctor.verdicts import ALL, Row, judge_allreduce, judge_hosts, judge_launcher
from hvdtrain.errors import ConfigError
from hvdtrain.launch.hosts import Host
from hvdtrain.launch.mpirun import LaunchRequest, find_flavour, make_request
from hvdtrain.launch.ssh import require_on_path

#: What each kind of mpirun starts on other hosts.
DAEMONS = {"openmpi4": "orted", "openmpi5": "prted", "mpich": "hydra_pmi_proxy", "intel": "hydra_bstrap_proxy"}


def examine(*, hosts: str | None, hostfile: Path | None, job: Path | None) -> tuple[list[Row], tuple[Host, ...]]:
    """Look at the hosts of ``-H`` or ``--hostfile``, this machine without either; return the rows and the hosts.

    Raises:
        ConfigError: The list of hosts breaks a rule, or ssh is needed and missing here.
    """
    measuring = [sys.executable, "-m", "hvdtrain.doctor.allreduce"]
    request = make_request(1, measuring, hosts=hosts, hostfile=hostfile)
    if hosts is None and hostfile is None:
        request = make_request(1, measuring, hosts=f"localhost:{os.cpu_count() or 1}")
    if any(not host.is_local for host in request.hosts):
        require_on_path("ssh")
    flavour, missing = _find_mpirun()
    path = None if job is None else str(job.resolve())
    daemon = None if flavour is None else _find_daemon(flavour)
    # Every host has a localhost of its own.
    own = "localhost" if len(request.hosts) == 1 else socket.gethostname()
    names = [own if host.name == "localhost" else host.name for host in request.hosts]
    wanted = {"names": names, "job": path, "folder": str(Path.cwd()), "daemon": daemon}
    answers = ask_hosts(request.hosts, wanted)
    rows = judge_hosts(request.hosts, answers, daemon=daemon, job=path)
    if flavour is None:
        return [*rows, *missing], request.hosts
    rows += judge_launcher(flavour)
    silent = [host.name for host, answer in zip(request.hosts, answers, strict=True) if answer.facts is None]
    if silent:
        return [*rows, Row("allreduce", ALL, f"not measured without {', '.join(silent)}", "note")], request.hosts
    measured = run_allreduce(_measuring_request(request), flavour)
    return [*rows, *judge_allreduce(measured, len(request.hosts))], request.hosts


def _find_mpirun() -> tuple[str | None, list[Row]]:
    try:
        return find_flavour(), []
    except ConfigError as error:
        found = shutil.which("mpirun") or "no mpirun on PATH"
        return None, [Row("mpirun", "here", found, "FAIL", str(error))]


def _find_daemon(flavour: str) -> str:
    """Return what this mpirun starts on other hosts: a name for their PATH, or a path of its own as Hydra does."""
    mpirun = shutil.which("mpirun")
    assert mpirun is not None, "find_flavour has asked it"
    name = DAEMONS[flavour]
    return str(Path(mpirun).with_name(name)) if name.startswith("hydra") else name


def _measuring_request(request: LaunchRequest) -> LaunchRequest:
    """Return a launch of one rank a host; of two ranks where there is one host."""
    slots = 2 if len(request.hosts) == 1 else 1
    hosts: Sequence[Host] = [Host(host.name, slots) for host in request.hosts]
    return LaunchRequest(
        slots * len(hosts), tuple(hosts), request.command, request.exported, request.has_ssh, request.is_root
    )
