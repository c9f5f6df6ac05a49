"""What the facts of hosts mean: rows of a table, each good, worth a note, or wrong and with its cure."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hvdtrain.doctor.ask import Answer
from hvdtrain.launch.forms import OPENMPI5_BINDING
from hvdtrain.launch.hosts import Host
from hvdtrain.launch.ssh import SSH_ARGS
from hvdtrain.wording import counted

Status = Literal["ok", "note", "FAIL"]
#: The host of a row that is about all of them, or about the launch.
ALL = "all"
MB = 1024**2
GB = 1024**3

#: Docker gives a container 64 MB; a rank with its loaders wants more.
SHM_PER_SLOT = 128 * MB
FOLDER_FREE = GB
TMP_FREE = 100 * MB
#: Time limits, logs and file times of several hosts make sense together up to here.
CLOCK_S = 1.0
#: Rows in this order.
VERSIONS = ("python", "hvdtrain", "horovod", "torch", "tensorflow", "keras", "numpy", "mpi4py")
FRAMEWORKS = ("torch", "tensorflow")
OPTIONAL = ("torch", "tensorflow", "keras")
INSTALL = "Run docker/install.sh there."

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One line of the report: what was looked at, on which host, what was found, and what to do."""

    check: str
    host: str
    found: str
    status: Status = "ok"
    cure: str = ""


def judge_hosts(hosts: Sequence[Host], answers: Sequence[Answer], *, daemon: str | None, job: str | None) -> list[Row]:
    """Return the rows about each host, check by check, and about what must be equal on all.

    Args:
        hosts: All hosts of the launch.
        answers: What each told, in the same order.
        daemon: The program that mpirun starts on other hosts.
        job: Path of the job file, if there is one.
    """
    asked = list(zip(hosts, answers, strict=True))
    rows = [_judge_answer(host, answer) for host, answer in asked]
    known = [(host, answer, answer.facts) for host, answer in asked if answer.facts is not None]
    single: list[Callable[[Host, Facts], Row]] = [_judge_cores, _judge_shared_memory, _judge_disk]
    rows += [check(host, facts) for check in single for host, _, facts in known]
    rows += [_judge_clock(host, answer) for host, answer, _ in known]
    facts_by_host = {host.name: facts for host, _, facts in known}
    rows += [row for host, _, facts in known for row in _judge_names(host, facts)]
    rows += _judge_interfaces(facts_by_host)
    rows += [_judge_daemon(host, facts, daemon) for host, _, facts in known if daemon and not host.is_local]
    rows += _judge_versions(facts_by_host)
    rows += [row for host, _, facts in known for row in _judge_builds(host.name, facts)]
    rows += _judge_equal("hvdtrain's code", {name: facts["code"] for name, facts in facts_by_host.items()}, INSTALL)
    if job is not None:
        digests = {name: facts["job"] for name, facts in facts_by_host.items()}
        rows += _judge_equal("job file", digests, f"Copy one and the same {job} to every host.")
    return merge(rows, [host.name for host in hosts])


def merge(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Fold rows that say the same of every host into one."""
    told = Counter(replace(row, host=ALL) for row in rows)
    is_common = {row for row, times in told.items() if times == len(names) > 1}
    # A dict keeps the order and drops what is there already.
    return list(dict.fromkeys(common if (common := replace(row, host=ALL)) in is_common else row for row in rows))


def _judge_answer(host: Host, answer: Answer) -> Row:
    check = "reached" if host.is_local else "ssh"
    if answer.facts is not None:
        return Row(check, host.name, "answers")
    if answer.is_reached:
        cure = f"Install hvdtrain at the same path on every host; the probe runs {sys.executable}."
        return Row("probe", host.name, answer.problem, "FAIL", cure)
    return Row(check, host.name, answer.problem, "FAIL", f"Make this succeed: {_ssh_line(host.name)}")


def _ssh_line(name: str) -> str:
    return shlex.join(["ssh", *SSH_ARGS, name, "true"])


def _judge_cores(host: Host, facts: Facts) -> Row:
    found = f"{counted(host.slots, 'slot')} on {counted(facts['cores'], 'core')}"
    if host.slots > facts["cores"]:
        cure = "Ranks share cores and slow each other down; fewer slots are as fast, unless GPUs do the work."
        return Row("slots", host.name, found, "note", cure)
    return Row("slots", host.name, found)


def _judge_shared_memory(host: Host, facts: Facts) -> Row:
    free, needed = facts["shm_free"], SHM_PER_SLOT * host.slots
    found = "no /dev/shm" if free is None else f"{_size(free)} free in /dev/shm"
    if free is None or free < needed:
        cure = f"Give it {_size(needed)} or more: docker run --shm-size 1g, or mount -o remount,size=1g /dev/shm."
        return Row("shared memory", host.name, found, "FAIL", cure)
    return Row("shared memory", host.name, found)


def _judge_disk(host: Host, facts: Facts) -> Row:
    folder, tmp = facts["folder_free"], facts["tmp_free"]
    if folder is None:
        cure = "Make this folder on the host too, or give paths in full: ranks start in the home folder instead."
        return Row("disk", host.name, "no such working folder", "note", cure)
    found = f"{_size(folder)} free in the working folder, {_size(tmp or 0)} for temporary files"
    if folder < FOLDER_FREE or (tmp or 0) < TMP_FREE:
        cure = f"Free some space: {_size(FOLDER_FREE)} for checkpoints and {_size(TMP_FREE)} in TMPDIR are the least."
        return Row("disk", host.name, found, "FAIL", cure)
    return Row("disk", host.name, found)


def _judge_clock(host: Host, answer: Answer) -> Row:
    found = f"{answer.clock_s:+.3f} s against this machine (± {answer.clock_error_s:.3f} s)"
    if abs(answer.clock_s) > CLOCK_S + answer.clock_error_s:
        return Row("clock", host.name, found, "FAIL", "Start a time service on the host, such as chrony.")
    return Row("clock", host.name, found if not host.is_local else "this machine's")


def _judge_names(host: Host, facts: Facts) -> Iterator[Row]:
    unknown = [name for name, seen in facts["names"].items() if seen["address"] is None]
    if unknown:
        cure = "Add them to DNS or to /etc/hosts on this host."
        yield Row("names", host.name, f"does not know {', '.join(unknown)}", "FAIL", cure)
    own = (host.name, facts["hostname"])
    others = {name: seen for name, seen in facts["names"].items() if name not in own and seen["address"]}
    looped = [name for name, seen in others.items() if seen["address"].startswith("127.")]
    if looped:
        cure = "Take the line with 127. and these names out of /etc/hosts on this host."
        yield Row("names", host.name, f"takes {', '.join(looped)} for itself", "FAIL", cure)
    nameless = [f"{name} ({seen['address']})" for name, seen in others.items() if seen["back"] is None]
    if nameless:
        cure = "MPI works without; batch systems and logs may want it: add these addresses to DNS or /etc/hosts."
        yield Row("names", host.name, f"no name for the address of {', '.join(nameless)}", "note", cure)
    if not (unknown or looped or nameless):
        yield Row("names", host.name, "all hosts by name, and their addresses back")


def _judge_interfaces(facts_by_host: Mapping[str, Facts]) -> Iterator[Row]:
    for name, facts in facts_by_host.items():
        towards = {seen["own"] for other, seen in facts["names"].items() if other != name}
        used = [f"{card} {address}" for card, address in facts["interfaces"].items() if address in towards]
        if len(facts["names"]) == 1:
            yield Row("interface", name, "none: ranks of one host use shared memory")
        else:
            yield Row("interface", name, ", ".join(sorted(used)) or "unknown")
    owners: dict[str, list[str]] = {}
    for name, facts in facts_by_host.items():
        for address in set(facts["interfaces"].values()):
            owners.setdefault(address, []).append(name)
    for address, names in sorted(owners.items()):
        if len(names) > 1 and not address.startswith("127."):
            cure = "MPI may try it and hang: export OMPI_MCA_btl_tcp_if_include=CARD, the one of the rows above."
            yield Row("interface", ALL, f"{address} is on {' and '.join(names)}", "FAIL", cure)


def _judge_daemon(host: Host, facts: Facts, daemon: str | None) -> Row:
    if facts["daemon"] is None:
        cure = (
            "Install the same MPI there; ssh starts this without a login shell, so /etc/environment must set its PATH."
        )
        return Row("MPI daemon", host.name, f"no {daemon}", "FAIL", cure)
    return Row("MPI daemon", host.name, facts["daemon"])


def _judge_versions(facts_by_host: Mapping[str, Facts]) -> Iterator[Row]:
    for package in VERSIONS:
        versions = {host: facts["versions"][package] for host, facts in facts_by_host.items()}
        yield from _judge_equal(package, versions, INSTALL, is_needed=package not in OPTIONAL)
    mpirun = {host: facts["mpirun"] for host, facts in facts_by_host.items()}
    yield from _judge_equal("MPI", mpirun, "Install the same MPI on every host, first on PATH: docker/install.sh.")
    if facts_by_host and not any(facts["versions"][name] for facts in facts_by_host.values() for name in FRAMEWORKS):
        yield Row("framework", ALL, "neither torch nor tensorflow", "FAIL", INSTALL)


def _judge_equal(check: str, values: Mapping[str, str | None], cure: str, *, is_needed: bool = True) -> Iterator[Row]:
    """Yield one row about a value that all hosts must share."""
    hosts_by_value: dict[str, list[str]] = {}
    for host, value in values.items():
        hosts_by_value.setdefault(value or "missing", []).append(host)
    place = ALL if len(values) > 1 else "".join(values)
    if len(hosts_by_value) > 1:
        found = "; ".join(f"{value} on {', '.join(hosts)}" for value, hosts in hosts_by_value.items())
        yield Row(check, ALL, found, "FAIL", f"It must be the same on every host. {cure}")
    elif "missing" in hosts_by_value:
        yield Row(check, place, "missing", "FAIL", cure) if is_needed else Row(check, place, "not installed", "note")
    elif hosts_by_value:
        yield Row(check, place, next(iter(hosts_by_value)))


def _judge_builds(host: str, facts: Facts) -> Iterator[Row]:
    for framework, built in facts["builds"].items():
        check = f"horovod.{framework}"
        if built is None:
            continue  # one of the two is missing, which a row above says
        if built.startswith("does not load"):
            yield Row(
                check, host, built, "FAIL", f"Build Horovod against the installed {framework}: docker/install.sh."
            )
        elif "mpi" not in built.split():
            yield Row(
                check, host, f"built with {built}", "FAIL", "Build it with HOROVOD_WITH_MPI=1: docker/install.sh."
            )
        else:
            yield Row(check, host, f"built with {built.replace(' ', ', ')}")


def judge_launcher(flavour: str) -> list[Row]:
    """Return what to know about the launchers here, by the kind of the mpirun on PATH; see `launch.detect_flavour`."""
    if flavour == "openmpi5":
        option, _, value = OPENMPI5_BINDING.partition("=")
        cure = f"This works: horovodrun {option}=\"{value}\" ...; 'hvdtrain launch' needs nothing."
        return [Row("horovodrun", "here", "fails with Open MPI 5 as it is", "note", cure)]
    if flavour == "mpich":
        cure = "Start jobs by 'hvdtrain launch' or mpirun."
        return [Row("horovodrun", "here", "does not know this MPICH", "note", cure)]
    return [Row("horovodrun", "here", "works with this MPI as it is")]


def judge_allreduce(measured: Mapping[str, Any] | str, num_hosts: int) -> list[Row]:
    """Return the rows of an allreduce: what its root told, or why there is nothing."""
    if isinstance(measured, str):
        cure = "Mend the rows above; if all are good, a firewall: hosts must reach each other on every port."
        return [Row("allreduce", ALL, measured, "FAIL", cure)]
    where = f"{counted(measured['size'], 'rank')} on {counted(measured['hosts'], 'host')}"
    rows = []
    if measured["hosts"] < num_hosts:
        cure = "Some names lead to the same machine; name each once."
        rows.append(Row("allreduce", ALL, f"{where}, expected {num_hosts}", "FAIL", cure))
    for num_bytes, seconds, is_right in measured["times"]:
        found = f"{_size(num_bytes)}: {_time(seconds)}, {_size(num_bytes / seconds)}/s, {where}"
        wrong = Row(
            "allreduce", ALL, f"{found}: wrong sum", "FAIL", "This MPI or network corrupts data; do not use it."
        )
        rows.append(Row("allreduce", ALL, found) if is_right else wrong)
    return rows


def _time(seconds: float) -> str:
    return (
        f"{seconds * 1e6:.0f} µs"
        if seconds < 1e-3
        else f"{seconds * 1e3:.3g} ms"
        if seconds < 1
        else f"{seconds:.3g} s"
    )


def _size(count: float) -> str:
    for unit, size in (("GB", GB), ("MB", MB), ("kB", 1024)):
        if count >= size:
            return f"{count / size:.0f} {unit}" if count >= 100 * size else f"{count / size:.3g} {unit}"
    return f"{count:.3g} B"
