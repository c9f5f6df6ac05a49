"""The launcher's terminal: text of ranks whole, and one live line below it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
from contextlib import contextmanager

from hvdtrain.launch.screen import Screen, columns_of


@contextmanager
def on_terminal(kind="xterm"):
    """Make standard error a terminal of 30 columns; what is yielded returns what it was sent."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
    kept, before = os.dup(2), os.environ.get("TERM")
    os.dup2(theirs, 2)
    os.environ["TERM"] = kind

    def sent():
        raw = b""
        while select.select([ours], [], [], 0.1)[0]:
            raw += os.read(ours, 1 << 16)
        return raw.decode()

    try:
        yield sent
    finally:
        os.dup2(kept, 2)
        os.environ.pop("TERM")
        os.environ.update({"TERM": before} if before is not None else {})
        for handle in (kept, ours, theirs):
            os.close(handle)


ERASE = "\r\x1b[K"


def test_live_line_is_taken_away_before_other_text_and_drawn_below_it():
    screen = Screen()
    with on_terminal() as sent:
        screen.show(b"step 1")
        screen.write(2, b"a warning\n")
        screen.show(b"step 2")
        screen.show(b"")
        assert sent() == f"step 1{ERASE}a warning\r\nstep 1{ERASE}step 2{ERASE}"


def test_live_line_waits_for_the_end_of_a_line_of_either_stream():
    screen = Screen()
    with on_terminal() as sent:
        screen.write(1, b"half of ")
        screen.show(b"step 1")
        assert sent() == ""
        screen.write(1, b"a line\n")
        assert sent() == "step 1"


def test_live_line_is_cut_to_the_terminal():
    with on_terminal() as sent:
        Screen().show(b"x" * 90)
        assert sent() == "x" * 29


def test_a_terminal_that_cannot_go_back_shows_no_live_line():
    with on_terminal():
        assert columns_of(2) == 30
    with on_terminal("dumb") as sent:
        assert columns_of(2) == 0
        Screen().show(b"step 1")
        assert sent() == ""


def test_a_file_shows_no_live_line(tmp_path):
    with (tmp_path / "log").open("wb") as stream:
        assert columns_of(stream.fileno()) == 0


def test_text_goes_on_unchanged_without_a_terminal(capfd):
    screen = Screen()
    screen.show(b"step 1")
    screen.write(1, b"out\n")
    screen.write(2, b"err\n")
    assert capfd.readouterr() == ("out\n", "err\n")
