"""One process alone; ranks that wait for one another are in tests/parallel/test_watchdog.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import itertools, sys, time
from hvdtrain.communicator import connect
from hvdtrain.position import Position
from hvdtrain.watchdog import Watchdog

communicator, position, written = connect(), Position("callback"), itertools.count()
with Watchdog(communicator, position, 0.5, {also_moved}):
    end = time.monotonic() + 2
    while time.monotonic() < end:
        {body}
time.sleep({afterwards})
print("came through")
"""


def run(body, also_moved="lambda: 0", afterwards=0):
    program = PROGRAM.format(body=body, also_moved=also_moved, afterwards=afterwards)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)


@pytest.mark.parametrize("body", ["time.sleep(30)", "pass"], ids=["sleeps", "spins"])
def test_a_main_thread_that_does_not_move_is_ended_with_code_3(body):
    done = run(body)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "watchdog: a rank must move within stall_timeout_s=0.5 s, and none has:" in done.stderr
    assert "Verdict: slow work: no rank comes out of its callback, at <string>:" in done.stderr


@pytest.mark.parametrize(
    ("body", "also_moved"),
    [("position.moved(); time.sleep(0.1)", "lambda: 0"), ("time.sleep(0.1)", "lambda: next(written)")],
    ids=["main thread", "beside it"],
)
def test_what_moves_is_no_stall_and_nothing_is_watched_afterwards(body, also_moved):
    done = run(body, also_moved, afterwards=2)
    assert (done.returncode, done.stdout) == (0, "came through\n"), done.stderr


def test_an_error_ends_the_watch():
    done = run("1 / 0")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
