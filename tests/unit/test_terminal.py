from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios

import pytest

from hvdtrain.launch.telling import LAUNCHER, TERMINAL
from hvdtrain.terminal import columns


@pytest.fixture
def terminal():
    """A terminal whose width can be set."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        yield stream
    os.close(ours)


@pytest.mark.parametrize(("width", "found"), [(80, 80), (100, 100), (240, 100), (12, 40)])
def test_columns_are_those_of_the_terminal_from_40_to_100(terminal, width, found):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    assert columns(terminal) == found


def test_a_terminal_that_does_not_know_its_width_counts_as_a_log(terminal):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
    assert columns(terminal) == 100


def test_a_log_has_100_columns(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with (tmp_path / "log").open("w") as stream:
        assert columns(stream) == 100
    assert columns(stream) == 100  # closed by now
    assert columns(io.StringIO()) == 100


def test_under_a_launcher_its_terminal_counts(tmp_path, monkeypatch):
    monkeypatch.setenv(LAUNCHER, "id")
    monkeypatch.setenv(TERMINAL, "72")
    with (tmp_path / "log").open("w") as stream:
        assert columns(stream) == 72
