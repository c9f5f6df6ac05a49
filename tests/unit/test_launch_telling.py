"""Marks between the text of ranks: where they stand, and how many there are."""

from __future__ import annotations

import os

import pytest

from hvdtrain.launch import telling
from hvdtrain.launch.telling import LAUNCHER, MARK, RateLimit, framed, tell_step


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(telling, "_limit", RateLimit(0.0))
    monkeypatch.setattr(telling, "_step", 0)


@pytest.fixture
def launched(monkeypatch, fresh):
    monkeypatch.setenv(LAUNCHER, "id")


def steps_in(capfd):
    return [int(number) for _, number, _ in MARK.findall(capfd.readouterr().err.encode())]


def test_rate_limit_lets_a_burst_pass_and_ten_a_second_in_the_long_run():
    limit = RateLimit(0.0)
    assert [limit.allows(0.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert sum(limit.allows(1.0 + step / 1000) for step in range(10_000)) in range(100, 112)


def test_the_root_tells_its_first_steps_all(launched, capfd):
    for step in (7, 8, 9):
        tell_step(step, is_root=True)
    assert steps_in(capfd) == [7, 8, 9]


def test_other_ranks_and_other_launches_tell_nothing(launched, capfd, monkeypatch):
    tell_step(7, is_root=False)
    monkeypatch.delenv(LAUNCHER)
    tell_step(8, is_root=True)
    assert framed("text\n") == "text\n"
    assert capfd.readouterr() == ("", "")


def test_a_report_tells_the_exact_step_of_its_rank(launched, capfd):
    for step in range(1, 100):
        tell_step(step, is_root=True)
    assert len(steps_in(capfd)) < 15
    assert framed("text\n") == "\x1ehvdtrain: failed 99\ntext\n\x1ehvdtrain: end 99\n"


def test_a_closed_standard_error_is_no_error(launched):
    kept = os.dup(2)
    os.close(2)
    try:
        tell_step(1, is_root=True)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
