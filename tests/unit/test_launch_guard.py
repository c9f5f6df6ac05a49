"""What outlives a killed launcher, and what it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from hvdtrain.launch import guard as guard_program
from hvdtrain.launch.guard import end_session, find_members

LIMIT_S = 20.0
#: A leader that starts two processes and tells so; what it is sent ends it alone.
LEADER = """
import subprocess, sys, time
others = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]) for _ in range(2)]
print("up", flush=True)
time.sleep(300)
"""


@pytest.fixture
def leader():
    """A process that leads a session of three."""
    process = subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout.readline() == b"up\n"
    yield process
    end_session(process.pid)
    process.wait()
    process.stdout.close()


@pytest.fixture
def guard():
    words = [sys.executable, "-I", "-S", guard_program.__file__]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        yield process
        process.kill()


def finish(guard, text):
    _, told = guard.communicate(text.encode(), timeout=LIMIT_S)
    assert (guard.returncode, told) == (0, b"")


def test_find_members_finds_a_whole_session_and_no_other(leader):
    assert len(find_members(leader.pid)) == 3
    assert os.getpid() in find_members(os.getsid(0))
    assert os.getpid() not in find_members(leader.pid)


def test_end_session_leaves_nothing(leader):
    end_session(leader.pid)
    assert find_members(leader.pid) == []


def test_guard_ends_the_session_of_a_leader_that_has_gone(leader, guard):
    leader.send_signal(signal.SIGTERM)
    leader.wait()
    assert len(find_members(leader.pid)) == 2
    began = time.monotonic()
    finish(guard, f"{leader.pid}\n")
    assert find_members(leader.pid) == []
    assert time.monotonic() - began < guard_program._GRACE_S


def test_guard_gives_the_leader_time_to_end_its_session_itself(leader, guard):
    began = time.monotonic()
    finish(guard, f"{leader.pid}\n")
    assert time.monotonic() - began >= guard_program._GRACE_S
    assert find_members(leader.pid) == []


@pytest.mark.parametrize("text", ["{pid}\ndone\n", ""])
def test_guard_of_a_launcher_that_is_done_ends_nothing(leader, guard, text):
    finish(guard, text.format(pid=leader.pid))
    assert len(find_members(leader.pid)) == 3
