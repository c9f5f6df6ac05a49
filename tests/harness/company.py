"""Tests that run beside each other on one machine: what shares a process, turns, and limits of time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: What pytest-xdist tells its workers.
WORKER_COUNT = "PYTEST_XDIST_WORKER_COUNT"
#: Beginnings of paths below ``tests`` whose tests share what is costly to make: with all of their file, or with those
#: of one framework; the lab of ``faults`` is one for all of its files.
BY_FILE = ("unit/", "contract/", "parity/", "examples/")
BY_FRAMEWORK = (
    "faults/",
    "parity/test_ranks.py",
    "parallel/test_cases_resume.py::test_case",
    "parallel/test_invariance.py",
    "parallel/test_launchers.py",
    "parallel/test_save_speed.py",
)
#: Beginnings of what starts before all else, in this order: what runs alone, while there is nobody to wait for, and
#: what takes long, so that no process is left with it at the end. Eight ranks, of two tests of four, would be too many.
FIRST = (
    "parallel/test_save_speed.py",
    "parallel/test_cases_resume.py::test_resume_cases_have_their_values[tensorflow-2]",
    "parallel/test_precision.py::test_precision_has_its_values_on_four_ranks[tensorflow]",
    "parallel/test_invariance.py",
    "parallel/test_precision.py",
    "parallel/test_accumulation.py",
    "parallel/test_cases.py",
    "parallel/test_watchdog.py",
    "parity/test_ranks.py tensorflow",
    "parity/test_command.py",
    "parity/test_peers.py",
    "parity/test_ranks.py",
    "parity/test_moving.py",
    "unit/test_harness.py",
    "unit/test_launch_",
    "unit/test_conftest.py",
    "unit/test_signals.py",
)


def group_of(test: str) -> str:
    """Return what the tests that must run in one process have in common; by default a test's own name.

    Args:
        test: Node id of a test, such as ``tests/parallel/test_modes.py::test_modes[torch]``.
    """
    name = test.removeprefix("tests/")
    for start in filter(name.startswith, BY_FRAMEWORK):
        return f"{start} {'tensorflow' if 'tensorflow' in name.partition('[')[2] else 'torch'}"
    return name.partition("::")[0] if name.startswith(BY_FILE) else name


def place_of(group: str) -> int:
    """Return how early a group of tests starts, 0 for the first; groups of one place keep their order."""
    return next((place for place, start in enumerate(FIRST) if group.startswith(start)), len(FIRST))


def in_company(limit_s: float) -> float:
    """Return a limit for what has all cores to itself, made longer by the number of tests that share them."""
    return limit_s * int(os.environ.get(WORKER_COUNT, "1"))


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made when it is absent."""
    with _opened(file) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def turn(folder: Path, *, is_alone: bool) -> Iterator[None]:
    """Wait until a test may run, beside the others of this folder or alone.

    All pass one door, in which who wants to be alone stays until the room is empty, so that nobody overtakes.
    """
    with _opened(folder / "room") as room:
        with locked(folder / "door"):
            fcntl.flock(room, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        yield


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)  # which gives a lock back
