"""What the doctor makes of facts, and that no host keeps it waiting."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hvdtrain.cli.doctor import print_rows
from hvdtrain.cli.main import app
from hvdtrain.doctor import examination, probe
from hvdtrain.doctor.ask import Answer, ask_host, ask_hosts, run_allreduce
from hvdtrain.doctor.verdicts import Row, judge_allreduce, judge_hosts, judge_launcher
from hvdtrain.errors import ConfigError
from hvdtrain.launch.hosts import Host
from hvdtrain.launch.mpirun import LaunchRequest
from hvdtrain.terminal import WIDEST
from tests.harness import run_command

GB = 1024**3
SOURCE = Path(probe.__file__).read_text()
HOSTS = (Host("worker1", 2), Host("worker2", 2))


def facts(number, **changes):
    """Return what the healthy host of this number tells."""
    names = {
        f"worker{n}": {"address": f"10.0.0.{n}", "back": f"worker{n}.net", "own": f"10.0.0.{number}"} for n in (1, 2)
    }
    healthy = {
        "hostname": f"worker{number}",
        "cores": 4,
        "shm_free": GB,
        "folder_free": 50 * GB,
        "tmp_free": 50 * GB,
        "versions": {
            **{"python": "3.11.2", "hvdtrain": "0.1.0", "horovod": "0.28.1", "torch": "2.13.0"},
            **{"tensorflow": "2.21.0", "keras": "3.15.1", "numpy": "2.4.6", "mpi4py": "4.1.2"},
        },
        "mpirun": "mpirun (Open MPI) 4.1.4",
        "daemon": "/usr/bin/orted",
        "code": "c0de",
        "job": "10b",
        "interfaces": {"lo": "127.0.0.1", "eth0": f"10.0.0.{number}"},
        "names": names,
        "builds": {"torch": "mpi gloo", "tensorflow": "mpi gloo"},
    }
    return {**healthy, **changes}


def judge(*answers, hosts=HOSTS):
    return judge_hosts(hosts, answers, daemon="orted", job="/job.py")


def changed(**changes):
    """Return the rows that are not good when the second host differs."""
    return [row for row in judge(Answer(facts(1)), Answer(facts(2, **changes))) if row.status != "ok"]


def with_version(package, version):
    return {**facts(2)["versions"], package: version}


# Verdicts


def test_healthy_hosts_give_good_rows_folded_where_they_say_the_same():
    rows = judge(Answer(facts(1)), Answer(facts(2)))
    assert {row.status for row in rows} == {"ok"}
    assert Row("torch", "all", "2.13.0") in rows
    assert Row("ssh", "all", "answers") in rows
    assert Row("interface", "worker1", "eth0 10.0.0.1") in rows
    assert Row("job file", "all", "10b") in rows


@pytest.mark.parametrize(
    ("changes", "check", "host", "found"),
    [
        ({"shm_free": 64 * 1024**2}, "shared memory", "worker2", "64 MB free in /dev/shm"),
        ({"shm_free": None}, "shared memory", "worker2", "no /dev/shm"),
        ({"folder_free": 1024**2}, "disk", "worker2", "1 MB free in the working folder, 50 GB for temporary files"),
        ({"tmp_free": None}, "disk", "worker2", "50 GB free in the working folder, 0 B for temporary files"),
        ({"daemon": None}, "MPI daemon", "worker2", "no orted"),
        ({"mpirun": None}, "MPI", "all", "mpirun (Open MPI) 4.1.4 on worker1; missing on worker2"),
        ({"code": "0ther"}, "hvdtrain's code", "all", "c0de on worker1; 0ther on worker2"),
        ({"job": None}, "job file", "all", "10b on worker1; missing on worker2"),
        ({"versions": with_version("torch", "2.12.0")}, "torch", "all", "2.13.0 on worker1; 2.12.0 on worker2"),
        ({"versions": with_version("keras", None)}, "keras", "all", "3.15.1 on worker1; missing on worker2"),
        (
            {"builds": {"torch": "gloo nccl", "tensorflow": "mpi"}},
            "horovod.torch",
            "worker2",
            "built with gloo nccl",
        ),
        (
            {"builds": {"torch": "mpi", "tensorflow": "does not load: x.so: undefined symbol"}},
            "horovod.tensorflow",
            "worker2",
            "does not load: x.so: undefined symbol",
        ),
        (
            {"interfaces": {"eth0": "10.0.0.2", "docker0": "172.17.0.1"}},
            None,
            None,
            None,
        ),
    ],
)
def test_what_is_wrong_on_one_host_fails_with_its_cure(changes, check, host, found):
    failed = [row for row in changed(**changes) if row.status == "FAIL"]
    if check is None:  # a bridge on one host alone is harmless
        assert failed == []
        return
    assert [(row.check, row.host, row.found) for row in failed] == [(check, host, found)]
    assert failed[0].cure


def test_a_bridge_of_one_address_on_two_hosts_fails():
    answers = [
        Answer(facts(n, interfaces={"lo": "127.0.0.1", "eth0": f"10.0.0.{n}", "docker0": "172.17.0.1"})) for n in (1, 2)
    ]
    (row,) = [row for row in judge(*answers) if row.status == "FAIL"]
    assert (row.check, row.found) == ("interface", "172.17.0.1 is on worker1 and worker2")
    assert "OMPI_MCA_btl_tcp_if_include" in row.cure


@pytest.mark.parametrize(
    ("seen", "status", "found"),
    [
        ({"address": None, "back": None, "own": None}, "FAIL", "does not know worker1"),
        ({"address": "127.0.1.1", "back": "worker1", "own": "127.0.0.1"}, "FAIL", "takes worker1 for itself"),
        (
            {"address": "10.0.0.1", "back": None, "own": "10.0.0.2"},
            "note",
            "no name for the address of worker1 (10.0.0.1)",
        ),
    ],
)
def test_names_that_do_not_lead_to_their_host(seen, status, found):
    rows = changed(names={**facts(2)["names"], "worker1": seen})
    (row,) = [row for row in rows if row.check == "names"]
    assert (row.host, row.status, row.found) == ("worker2", status, found)
    assert row.cure


def test_a_host_may_know_itself_by_its_loopback_address():
    own = {"address": "127.0.1.1", "back": "worker2", "own": "127.0.0.1"}
    assert changed(names={**facts(2)["names"], "worker2": own}) == []


def test_more_slots_than_cores_is_a_note():
    assert [(row.check, row.found, row.status) for row in changed(cores=1)] == [("slots", "2 slots on 1 core", "note")]


@pytest.mark.parametrize(("clock_s", "error_s", "status"), [(0.9, 0.0, "ok"), (-1.5, 0.1, "FAIL"), (1.5, 0.6, "ok")])
def test_clock_fails_only_beyond_what_the_look_can_tell(clock_s, error_s, status):
    rows = judge(Answer(facts(1)), Answer(facts(2), clock_s=clock_s, clock_error_s=error_s))
    (row,) = [row for row in rows if row.check == "clock" and row.host == "worker2"]
    assert row.status == status


def test_a_host_that_does_not_answer_has_one_row():
    rows = judge(Answer(facts(1)), Answer(None, "Connection refused", is_reached=False))
    failed = [row for row in rows if row.status == "FAIL"]
    cure = "Make this succeed: ssh -o BatchMode=yes -o ConnectTimeout=10 worker2 true"
    assert failed == [Row("ssh", "worker2", "Connection refused", "FAIL", cure)]
    assert [row for row in rows if row.host == "worker2"] == failed


def test_a_host_without_the_interpreter_is_reached_all_the_same():
    (row,) = [row for row in judge(Answer(facts(1)), Answer(None, "No such file")) if row.status == "FAIL"]
    assert (row.check, row.host) == ("probe", "worker2")
    assert sys.executable in row.cure


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_framework_that_no_host_has_is_told_and_fails_nothing(framework):
    versions = {**facts(1)["versions"], framework: None}
    builds = {**facts(1)["builds"], framework: None}
    rows = judge(*(Answer(facts(n, versions=versions, builds=builds)) for n in (1, 2)))
    assert Row(framework, "all", "not installed", "note") in rows
    assert [row for row in rows if row.status == "FAIL"] == []


def test_hosts_without_horovod_and_frameworks_fail():
    versions = dict.fromkeys(facts(1)["versions"]) | {"python": "3.11.2", "hvdtrain": "0.1.0", "mpi4py": "4.1.2"}
    nothing = {"torch": None, "tensorflow": None}
    rows = judge(*(Answer(facts(n, versions=versions, builds=nothing)) for n in (1, 2)))
    failed = [(row.check, row.found) for row in rows if row.status == "FAIL"]
    assert failed == [("horovod", "missing"), ("numpy", "missing"), ("framework", "neither torch nor tensorflow")]


def test_the_hint_for_horovodrun_is_there_with_openmpi5_alone():
    (row,) = judge_launcher("openmpi5")
    assert row.status == "note"
    assert 'horovodrun --binding-args="--bind-to none --map-by slot"' in row.cure
    assert [row.status for flavour in ("openmpi4", "intel") for row in judge_launcher(flavour)] == ["ok", "ok"]


def test_allreduce_rows_tell_time_and_bandwidth():
    measured = {"size": 2, "hosts": 2, "times": [[8, 20e-6, True], [8 * 1024**2, 0.5, True], [1024, 2.0, False]]}
    small, large, wrong = judge_allreduce(measured, 2)
    assert small.found == "8 B: 20 µs, 391 kB/s, 2 ranks on 2 hosts"
    assert large.found == "8 MB: 500 ms, 16 MB/s, 2 ranks on 2 hosts"
    assert (small.status, wrong.status) == ("ok", "FAIL")


def test_allreduce_on_fewer_hosts_than_named_fails():
    rows = judge_allreduce({"size": 2, "hosts": 1, "times": []}, 2)
    assert [(row.found, row.status) for row in rows] == [("2 ranks on 1 host, expected 2", "FAIL")]


# Time limits


def test_a_silent_host_is_given_up():
    began = time.monotonic()
    answer = ask_host(["sleep", "300"], 0.5)
    assert (answer.facts, answer.problem, answer.is_reached) == (None, "silent for 0.5 s", False)
    assert time.monotonic() - began < 20


def test_a_host_that_falls_silent_after_its_clock_is_given_up():
    program = "import time\nfor _ in range(5): input(); print(time.time(), flush=True)\ntime.sleep(300)"
    assert ask_host([sys.executable, "-c", program], 2).problem == "silent for 2 s"


def test_clocks_are_compared():
    program = "import time\nfor _ in range(5): input(); print(time.time() + 100, flush=True)\ninput(); print('{}')"
    answer = ask_host([sys.executable, "-c", program], 20)
    assert abs(answer.clock_s - 100) <= answer.clock_error_s + 0.01


@pytest.mark.parametrize(
    ("code", "text", "is_reached"),
    [(255, "ssh: connect to host worker2 port 22: Connection refused.", False), (127, "no such interpreter", True)],
)
def test_what_ssh_says_is_told(code, text, is_reached):
    answer = ask_host(["sh", "-c", f"echo '{text}' >&2; exit {code}"], 20)
    assert (answer.problem, answer.is_reached) == (text.strip("."), is_reached)


def test_a_missing_program_is_told():
    assert "no-such-program" in ask_host(["no-such-program"], 20).problem


def test_an_allreduce_that_does_not_end_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "mpirun").write_text("#!/bin/sh\nexec sleep 300\n")
    (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert run_allreduce(LaunchRequest(1, (Host("localhost", 1),), ("true",)), "openmpi4", 0.5) == "not done in 0.5 s"


# The probe


def test_probe_needs_the_standard_library_alone(tmp_path):
    wanted = {"names": ["localhost", "no-such-host.invalid"], "job": None, "folder": str(tmp_path), "daemon": None}
    words = [sys.executable, "-I", "-S", "-c", SOURCE, json.dumps({**wanted, "limit_s": 30})]
    done = run_command(words, timeout_s=50)
    assert done.returncode == 0, done.output
    told = json.loads(done.stdout)
    assert told["names"]["localhost"]["address"] == "127.0.0.1"
    assert told["names"]["no-such-host.invalid"]["address"] is None
    assert told["versions"]["torch"] is told["builds"]["torch"] is None
    assert told["interfaces"]["lo"] == "127.0.0.1"


def test_probe_ends_itself_when_nobody_asks_any_longer(tmp_path):
    wanted = {"names": [], "job": None, "folder": str(tmp_path), "daemon": None, "limit_s": 1}
    with subprocess.Popen([sys.executable, "-c", SOURCE, json.dumps(wanted)], stdin=subprocess.PIPE) as process:
        assert process.wait(20) == -signal.SIGALRM


def test_digest_tells_a_changed_file_and_a_moved_one(tmp_path, monkeypatch):
    package = tmp_path / "somepackage"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    first = probe.digest_package("somepackage")
    (package / "a.py").write_text("x = 2\n")
    second = probe.digest_package("somepackage")
    (package / "a.py").rename(package / "inner/a.py")
    assert len({first, second, probe.digest_package("somepackage")}) == 3
    assert probe.digest_package("no_such_package") is None


# The command


def test_table_fits_and_shows_markup_as_text(capsys):
    print_rows([Row("names", "w" * 60, "[red]" + "x " * 100, "FAIL", "y " * 100)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDEST
    assert any("[red]" in line for line in lines)
    assert any("-> y" in line for line in lines)


@pytest.mark.parametrize(("row", "code"), [(Row("disk", "a", "x"), 0), (Row("disk", "a", "x", "FAIL", "Free it."), 1)])
def test_exit_code_follows_the_rows(monkeypatch, row, code):
    monkeypatch.setattr(examination, "examine", lambda **options: ([row, Row("clock", "a", "y", "note")], HOSTS))
    result = CliRunner().invoke(app, ["doctor", "-H", "worker1:2,worker2:2"])
    assert result.exit_code == code
    verdict = "NOT READY (2 hosts, 4 slots): 1 of 2 checks fails: disk on a" if code else "ready (2 hosts, 4 slots)"
    assert result.output.splitlines()[-1] == f"doctor: {verdict}"


def test_hosts_and_hostfile_together_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="hosts must come from one option"):
        examination.examine(hosts="a:1", hostfile=tmp_path / "hosts", job=None)


def test_localhost_among_others_goes_by_its_name(monkeypatch):
    asked = {}
    monkeypatch.setattr(examination, "_find_mpirun", lambda: (None, []))
    monkeypatch.setattr(
        examination, "ask_hosts", lambda hosts, wanted: asked.update(wanted) or [Answer(None, "x")] * len(hosts)
    )
    examination.examine(hosts="localhost:1,worker1:1", hostfile=None, job=None)
    assert asked["names"] == [socket.gethostname(), "worker1"]
    assert ask_hosts([], {}) == []
