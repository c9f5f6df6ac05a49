"""Run a launch to its end: once, or again after a failure, on the hosts that still answer.

Ranks learn from their environment that they are launched again, and then continue their run folder; the global batch
stays as it was on the ranks of the first attempt (:mod:`hvdtrain.resume`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from hvdtrain.errors import ConfigError
from hvdtrain.launch.child import Outcome, run_child
from hvdtrain.launch.hosts import Host
from hvdtrain.launch.log import LauncherLog
from hvdtrain.launch.mpirun import EXAMPLE, LaunchRequest, build_mpirun_command, find_added, find_flavour
from hvdtrain.launch.screen import columns_of, write_all
from hvdtrain.launch.ssh import find_silent, require_answers
from hvdtrain.launch.telling import FIRST_RANKS, LAUNCHER, RESTART, TERMINAL
from hvdtrain.terminal import columns
from hvdtrain.wording import counted, shortened

#: Exit codes after which nothing is launched again: the job is done, it is wrong as it stands, or it was stopped.
_FINAL_CODES = {0, 2, *(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1))}


def run_launch(
    request: LaunchRequest, *, restarts: int = 0, log_path: Path | None = None, is_quiet: bool = False
) -> int:
    """Run the request under mpirun; what is missing is a ConfigError.

    Call it in the main thread: SIGTERM, SIGINT and SIGHUP are passed on to mpirun.

    Args:
        request: What to start.
        restarts: How often to launch again after a failure, at least 0. Wrong input and a stop by signal are none,
            and the same step failing twice in a row ends the attempts.
        log_path: File for what mpirun itself says; ``None`` for the default one.
        is_quiet: Say nothing but what went wrong, and show no live line.

    Returns:
        The exit code of mpirun, or 128 + signal when a signal ended the job; of the last attempt.
    """
    _require_program(request)
    flavour = find_flavour()
    if not is_quiet:
        _say(_first_line(request))
    if request.has_ssh:
        require_answers(_remote_names(request))
    log = LauncherLog(log_path, request.command)
    shown_on = 0 if is_quiet else columns_of(2)
    told = {LAUNCHER: os.environ.get(LAUNCHER) or uuid4().hex, TERMINAL: str(shown_on or "")}
    outcome, failed_at = _run_once(request, flavour, told, log, is_quiet=is_quiet), None
    for attempt in range(2, restarts + 2):
        if not _is_failure(outcome):
            return outcome.code
        step = outcome.heard.step
        if step is not None and step == failed_at:
            _say(f"gives up after attempt {attempt - 1} of {restarts + 1}: it failed twice {_place(step)}")
            return outcome.code
        failed_at, remaining = step, _remaining(request)
        if remaining is None:
            return outcome.code
        _say(_relaunch_line(outcome, attempt, restarts + 1, remaining))
        told |= {RESTART: str(attempt - 1), FIRST_RANKS: str(request.num_ranks)}
        outcome = _run_once(remaining, flavour, told, log, is_quiet=is_quiet)
    if restarts and _is_failure(outcome):
        _say(f"gives up, attempt {restarts + 1} of {restarts + 1} failed as well")
    return outcome.code


def _require_program(request: LaunchRequest) -> None:
    # Only a launch on this machine alone can know what its ranks will find.
    is_local = all(host.is_local for host in request.hosts)
    if is_local and shutil.which(request.command[0]) is None:
        raise ConfigError(
            "launch: the program must be on PATH or a path to an executable, "
            f"got {request.command[0]!r}. For example: {EXAMPLE}."
        )


def _remote_names(request: LaunchRequest) -> list[str]:
    return [host.name for host in request.hosts if not host.is_local]


def _run_once(
    request: LaunchRequest, flavour: str, told: Mapping[str, str], log: LauncherLog, *, is_quiet: bool
) -> Outcome:
    """Run mpirun once, and see that the last words are those about the failure."""
    request = replace(request, exported=tuple(sorted({*request.exported, *told})))
    added = find_added(request, flavour, os.environ)
    command = build_mpirun_command(request, flavour)
    outcome = run_child(command, {**os.environ, **added, **told}, log.write, is_quiet=is_quiet)
    if outcome.ends_in_line:
        write_all(2, b"\n")
    write_all(2, outcome.heard.take_report())
    line = _last_line(outcome, request, log)
    if line:
        _say(line)
    return outcome


def _last_line(outcome: Outcome, request: LaunchRequest, log: LauncherLog) -> str:
    """Return what mpirun knew of a failure, where no rank could tell it; else an empty text."""
    ending = outcome.heard.find_ending()
    if outcome.code == 0 or outcome.was_stopped:
        return ""
    if outcome.was_killed:
        name = signal.Signals(outcome.code - 128).name
        return f"mpirun was ended by {name}, and its ranks with it"
    if outcome.heard.has_report and (ending is None or ending.is_own_doing):
        return ""
    kept = f"; mpirun's own words are in {log.path}" if log.path and outcome.heard.words else ""
    if ending is None:
        return f"mpirun left with exit code {outcome.code} and named no rank{kept}"
    host = ending.host or _host_of(ending.rank, request.hosts)
    is_host = ending.rank is None and ending.signal is None and not ending.is_own_doing
    who = "host" if is_host else "a rank on" if ending.rank is None else f"rank {ending.rank} on"
    return f"{who} {host} {ending.how}{kept}"


def _host_of(rank: int | None, hosts: Sequence[Host]) -> str:
    """Return where a rank runs: ranks fill the hosts in order."""
    names = [host.name for host in hosts for _ in range(host.slots)]
    return "an unknown host" if rank is None else names[rank]


def _is_failure(outcome: Outcome) -> bool:
    return not outcome.was_stopped and outcome.code not in _FINAL_CODES


def _remaining(request: LaunchRequest) -> LaunchRequest | None:
    """Return the request on the hosts that still answer, with no more ranks than their slots; ``None`` without any."""
    if not request.has_ssh:
        return request
    silent = find_silent(_remote_names(request))
    for name, reason in silent.items():
        _say(f"host {name} does not answer ssh ({reason}) and is left out")
    hosts = tuple(host for host in request.hosts if host.name not in silent)
    if not hosts:
        _say("gives up, no host is left that answers ssh")
        return None
    num_slots = sum(host.slots for host in hosts)
    return replace(request, hosts=hosts, num_ranks=min(request.num_ranks, num_slots))


def _relaunch_line(outcome: Outcome, attempt: int, attempts: int, remaining: LaunchRequest) -> str:
    step = outcome.heard.step
    where = "" if step is None else f" {_place(step)}"
    ranks = counted(remaining.num_ranks, "rank")
    return f"attempt {attempt} of {attempts} after exit code {outcome.code}{where}, on {ranks}"


def _first_line(request: LaunchRequest) -> str:
    """Return what is started and what takes time until ranks say something, on one line of the terminal."""
    ours = (sys.executable, "-m", "hvdtrain")
    command = ("hvdtrain", *request.command[3:]) if request.command[:3] == ours else request.command
    command = ("python", *command[1:]) if command[0] == sys.executable else command
    where = f" on {counted(len(request.hosts), 'host')}" if request.has_ssh else ""
    first = "asks the hosts over ssh, then starts" if request.has_ssh else "starts"
    begin = f"{first} {counted(request.num_ranks, 'rank')}{where}: "
    end = "; loading takes some seconds"
    room = columns(sys.stderr) - len(f"launch: {begin}{end}")
    return f"{begin}{shortened(' '.join(shlex.join(command).split()), room)}{end}"


def _place(step: int) -> str:
    return f"at step {step}" if step else "before the first step"


def _say(line: str) -> None:
    write_all(2, f"launch: {line}\n".encode())
