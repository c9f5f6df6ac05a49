"""When a job is launched again, on what, and when no more: real mpirun, ranks that tell steps as trainers do."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time

import pytest

from hvdtrain.errors import ConfigError
from hvdtrain.launch.hosts import Host
from hvdtrain.launch.mpirun import LaunchRequest
from hvdtrain.launch.restarts import run_launch
from tests.harness import run_command, start_command

TIME_LIMIT_S = 60.0
needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun") is None and "HVDTRAIN_REQUIRE" not in os.environ, reason="mpirun is not on PATH"
)
LAUNCH = (sys.executable, "-m", "hvdtrain", "launch", "--quiet")

#: What a rank of attempt 1, 2, .. does. Step 0 tells none. ``rank`` does it, the other ones wait.
RANK = """
import os, sys, time
from hvdtrain.launch.telling import FIRST_RANKS, RESTART, framed, tell_step
environ = os.environ
rank, size = int(environ["OMPI_COMM_WORLD_RANK"]), environ["OMPI_COMM_WORLD_SIZE"]
attempt = int(environ.get(RESTART, 0))
if rank == 0:
    os.write(1, f"{environ.get(RESTART)} {environ.get(FIRST_RANKS)} {size}\\n".encode())
step, code = eval(sys.argv[1])[attempt]
if step:
    tell_step(step, is_root=rank == 0)
if code and rank != int(size) - 1:
    time.sleep(60)
time.sleep(0.2)
if code == 9:
    os.kill(os.getpid(), 9)
os._exit(code)
"""


@pytest.fixture(autouse=True)
def log(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "hvdtrain" / "launch.log"


def launched(attempts, *options, env=None):
    """Return exit code, one word list per attempt, and what the launcher said."""
    words = [*LAUNCH, "-np", "2", *options, "--", "python", "-c", RANK, repr(attempts)]
    done = run_command(words, timeout_s=TIME_LIMIT_S, env=env)
    assert "\x1e" not in done.output
    return done.returncode, done.stdout.splitlines(), done.stderr


def ended(log, code, rank=1, host="localhost"):
    how = f"left with exit code {code}"
    if code == 9:
        host, how = os.uname().nodename, "was ended by signal 9 (Killed)"
    return f"launch: rank {rank} on {host} {how}; mpirun's own words are in {log}\n"


@needs_mpirun
def test_without_restarts_a_failure_is_final(log):
    assert launched([(3, 7)]) == (7, ["None None 2"], ended(log, 7))


@needs_mpirun
def test_restarts_end_with_the_first_attempt_that_ends_well(log):
    code, attempts, told = launched([(3, 7), (4, 9), (0, 0)], "--restarts", "5")
    assert (code, attempts) == (0, ["None None 2", "1 2 2", "2 2 2"])
    assert told == (
        ended(log, 7)
        + "launch: attempt 2 of 6 after exit code 7 at step 3, on 2 ranks\n"
        + ended(log, 9)
        + "launch: attempt 3 of 6 after exit code 137 at step 4, on 2 ranks\n"
    )


@needs_mpirun
def test_restarts_end_when_the_same_step_fails_twice(log):
    code, attempts, told = launched([(3, 7), (3, 4), (0, 0)], "--restarts", "5")
    assert (code, attempts) == (4, ["None None 2", "1 2 2"])
    assert told == (
        ended(log, 7)
        + "launch: attempt 2 of 6 after exit code 7 at step 3, on 2 ranks\n"
        + ended(log, 4)
        + "launch: gives up after attempt 2 of 6: it failed twice at step 3\n"
    )


@needs_mpirun
def test_restarts_are_used_up_where_no_step_is_told(log):
    code, attempts, told = launched([(0, 7), (0, 8)], "--restarts", "1")
    assert (code, len(attempts)) == (8, 2)
    assert told == (
        ended(log, 7)
        + "launch: attempt 2 of 2 after exit code 7, on 2 ranks\n"
        + ended(log, 8)
        + "launch: gives up, attempt 2 of 2 failed as well\n"
    )


@needs_mpirun
@pytest.mark.parametrize("code", [0, 2, 143])
def test_success_wrong_input_and_a_stop_are_no_reason_to_launch_again(code):
    returned, attempts, _ = launched([(3, code)], "--restarts", "5")
    assert (returned, attempts) == (code, ["None None 2"])


@needs_mpirun
def test_a_signal_to_the_launcher_is_no_reason_to_launch_again():
    code = "import os, time; os.write(1, b'up\\n'); time.sleep(60)"
    with start_command([*LAUNCH, "-np", "2", "--restarts", "5", "--", "python", "-c", code]) as launch:
        limit = time.monotonic() + TIME_LIMIT_S
        while launch.stdout().count("up") < 2:
            assert time.monotonic() < limit, launch.stderr()
            time.sleep(0.05)
        launch.process.send_signal(signal.SIGTERM)
        done = launch.finish(timeout_s=20.0)
    assert (done.returncode, done.stdout, done.stderr) == (143, "up\nup\n", "")


@pytest.fixture
def two_hosts(tmp_path):
    """The environment in which worker1 and worker2 are reached by a stand-in for ssh, and a function that ends one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(
        "#!/bin/sh\n"
        'while :; do case "$1" in -o) shift 2;; -*) shift;; *) break;; esac; done\n'
        "host=$1; shift\n"
        f'[ -e {tmp_path}/$host-is-down ] && {{ echo "ssh: $host: no route" >&2; exit 255; }}\n'
        # Two daemons of Open MPI at one TMPDIR may make their session folder at the same moment, and fail.
        f"mkdir -p {tmp_path}/$host && export TMPDIR={tmp_path}/$host\n"
        'exec sh -c "$*"\n'
    )
    (folder / "ssh").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "HVDTRAIN_TEST_FOLDER": str(tmp_path)}


@needs_mpirun
def test_restarts_leave_out_the_hosts_that_do_not_answer(two_hosts, log):
    words = [*LAUNCH, "-np", "3", "-H", "worker1:2,worker2:1", "--restarts", "3", "--", "python", "-c", RANK]
    attempts = "(rank != 2 or open(environ['HVDTRAIN_TEST_FOLDER'] + '/worker2-is-down', 'w')) and [(3, 9), (5, 0)]"
    done = run_command([*words, attempts], timeout_s=TIME_LIMIT_S, env=two_hosts)
    assert done.returncode == 0, done.output
    assert done.stdout.splitlines() == ["None None 3", "1 3 2"]
    assert [line for line in done.stderr.splitlines() if line.startswith("launch:")] == [
        f"launch: rank 2 on worker2 was ended by signal 9 (Killed); mpirun's own words are in {log}",
        "launch: host worker2 does not answer ssh (ssh: worker2: no route) and is left out",
        "launch: attempt 2 of 4 after exit code 137 at step 3, on 2 ranks",
    ]


@needs_mpirun
def test_restarts_end_when_no_host_answers(two_hosts):
    words = [*LAUNCH, "-np", "2", "-H", "worker1:1,worker2:1", "--restarts", "3", "--", "python", "-c", RANK]
    opened = " and ".join(f"open(environ['HVDTRAIN_TEST_FOLDER'] + '/worker{host}-is-down', 'w')" for host in (1, 2))
    done = run_command([*words, f"{opened} and [(3, 7)]"], timeout_s=TIME_LIMIT_S, env=two_hosts)
    assert done.returncode == 7, done.output
    assert done.stderr.splitlines()[-3:] == [
        "launch: host worker1 does not answer ssh (ssh: worker1: no route) and is left out",
        "launch: host worker2 does not answer ssh (ssh: worker2: no route) and is left out",
        "launch: gives up, no host is left that answers ssh",
    ]


def test_run_launch_with_unknown_program_raises():
    with pytest.raises(ConfigError) as caught:
        run_launch(LaunchRequest(2, (Host("localhost", 2),), ("no-such-program",)))
    assert str(caught.value) == (
        "launch: the program must be on PATH or a path to an executable, got 'no-such-program'. "
        "For example: hvdtrain launch -np 2 -- python train.py."
    )
