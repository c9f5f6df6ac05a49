"""The doctor on this machine for real, and on hosts that a stand-in for ssh makes of it, healthy and ill."""

from __future__ import annotations

import re

import pytest

from tests.harness import require, run_command
from tests.parallel.commands import BIN, FRAMEWORKS, JOBS
from tests.parallel.other_mpis import activated, bin_folder
from tests.parallel.two_hosts import ADDRESSES, two_hosts

TIMEOUT_S = 200
LIGHT = "openmpi"  # an environment without Horovod and frameworks, where a probe takes no time

#: Runs on this machine what should run on another one; each host has an illness of its own.
SSH = """#!/usr/bin/env bash
while [[ $1 == -o ]]; do shift 2; done
host=$1 command=$2
case $host in
    127.0.0.2) ;;
    127.0.0.3) export PYTHONPATH={other} ;;
    127.0.0.4) echo "ssh: connect to host $host port 22: Connection refused" >&2; exit 255 ;;
    127.0.0.5) command="/no-such-folder$command" ;;
esac
exec sh -c "$command"
"""


def doctor(*options, env, folder):
    words = [str(folder / "hvdtrain"), "doctor", *options]
    return run_command(words, timeout_s=TIMEOUT_S, env={"COLUMNS": "60", "NO_COLOR": "1", **env})


def rows(finished):
    """Return the text of each row by its check and host, a row's lines joined; its status comes first."""
    found = {}
    key = None
    for line in finished.stdout.splitlines():
        new = re.match(r"  (ok|note|FAIL) +(\S+(?: \S+)*)  +(\S+)  +", line)
        if new:
            key = (new[2], new[3])
            found[key] = f"{found.get(key, '')} {new[1]}: {line[new.end() :]}"
        elif key and line.startswith("   "):
            found[key] += f" {line}"
    return {key: re.sub(r"\s+", " ", text).strip() for key, text in found.items()}


def test_this_machine_is_ready():
    for framework in FRAMEWORKS:
        require(framework)
    finished = doctor("-H", "localhost:1", "--job", str(JOBS / "toy.py"), env={}, folder=BIN)
    assert finished.returncode == 0, finished.output
    assert finished.stdout.splitlines()[-1] == "doctor: ready (1 host, 1 slot)"
    assert max(map(len, finished.stdout.splitlines())) <= 100
    told = rows(finished)
    for check in ("slots", "shared memory", "disk", "clock", "names", "interface", "python", "hvdtrain", "horovod"):
        assert told[check, "localhost"].startswith("ok: ")
    for framework in FRAMEWORKS:
        assert told[f"horovod.{framework}", "localhost"].startswith("ok: built with mpi")
    for size in ("8 B", "64 kB", "8 MB"):
        assert re.search(rf"ok: {size}: [\d.]+ (µs|ms|s), [\d.]+ .?B/s, 2 ranks on 1 host", told["allreduce", "all"])


def test_without_frameworks_and_horovod_it_says_so_and_measures_all_the_same():
    finished = doctor("-H", "localhost:1", env=activated(LIGHT), folder=bin_folder(LIGHT))
    assert finished.returncode == 1, finished.output
    told = rows(finished)
    assert [key[0] for key, text in told.items() if text.startswith("FAIL")] == ["horovod", "framework"]
    assert told["torch", "localhost"] == told["tensorflow", "localhost"] == "note: not installed"
    assert '--binding-args="--bind-to none --map-by slot"' in told["horovodrun", "here"]
    assert "ok: 8 MB" in told["allreduce", "all"]
    verdict = r"doctor: NOT READY \(1 host, 1 slot\): 2 of \d+ checks fail: horovod on localhost, framework on all"
    assert re.fullmatch(verdict, finished.stdout.splitlines()[-1])


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_two_hosts_are_measured_over_the_wire_between_them(mpi, tmp_path):
    with two_hosts(tmp_path) as hosts:
        names = ",".join(f"{address}:1" for address in ADDRESSES)
        words = hosts.on_first(str(bin_folder(mpi) / "hvdtrain"), "doctor", "-H", names)
        finished = run_command(words, timeout_s=TIMEOUT_S, env=hosts.env(activated(mpi)))
    told = rows(finished)
    assert [key[0] for key, text in told.items() if text.startswith("FAIL")] == ["horovod", "framework"]
    assert [told["interface", address] for address in ADDRESSES] == [
        f"ok: wire{number} {address}" for number, address in enumerate(ADDRESSES, 1)
    ]
    assert told["ssh", "all"] == "ok: answers"
    assert "2 ranks on 2 hosts" in told["allreduce", "all"], finished.output


@pytest.fixture
def ssh(tmp_path):
    """The environment in which ssh is the stand-in."""
    info = tmp_path / "other/mpi4py-9.9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mpi4py\nVersion: 9.9.9\n")
    program = tmp_path / "bin/ssh"
    program.parent.mkdir()
    program.write_text(SSH.format(other=tmp_path / "other"))
    program.chmod(0o755)
    env = activated(LIGHT)
    return {**env, "PATH": f"{program.parent}:{env['PATH']}"}


def test_each_illness_has_its_row_and_keeps_nobody_waiting(ssh):
    hosts = ",".join(f"127.0.0.{number}:1" for number in range(2, 6))
    finished = doctor("-H", hosts, "--job", str(JOBS / "toy.py"), env=ssh, folder=bin_folder(LIGHT))
    assert finished.returncode == 1, finished.output
    told = rows(finished)
    assert told["ssh", "127.0.0.2"] == "ok: answers"
    assert told["ssh", "127.0.0.4"] == (
        "FAIL: ssh: connect to host 127.0.0.4 port 22: Connection refused "
        "-> Make this succeed: ssh -o BatchMode=yes -o ConnectTimeout=10 127.0.0.4 true"
    )
    assert re.match("FAIL: .*not found -> Install hvdtrain at the same path", told["probe", "127.0.0.5"])
    assert told["mpi4py", "all"].startswith(
        "FAIL: 4.1.2 on 127.0.0.2; 9.9.9 on 127.0.0.3 -> It must be the same on every host."
    )
    assert told["hvdtrain's code", "all"].startswith("ok: ")
    assert told["MPI daemon", "127.0.0.2"].startswith("ok: ")
    assert told["allreduce", "all"] == "note: not measured without 127.0.0.4, 127.0.0.5"


def test_bad_hosts_are_one_message():
    finished = doctor("-H", "worker1", env={}, folder=BIN)
    assert finished.returncode == 2
    assert finished.output == (
        "hvdtrain: error: launch: each host of -H must read host:slots with slots of at least 1, got 'worker1'. "
        "Write for example -H localhost:2.\n"
    )
