from __future__ import annotations

import logging
import os
import sys

import pytest

from hvdtrain import quiet
from hvdtrain.quiet import stderr_to_log, write_caught


def write(text):
    """Write as compiled code does, past ``sys.stderr``."""
    os.write(2, text.encode())


@pytest.fixture(autouse=True)
def nothing_caught(monkeypatch):
    monkeypatch.setattr(quiet, "_caught", [])


def test_stderr_to_log_sends_what_the_body_writes_to_the_debug_log(capfd, caplog):
    with caplog.at_level(logging.DEBUG, "hvdtrain.quiet"), stderr_to_log("loading"):
        write("a notice\n")
    assert caplog.messages == ["loading: a notice\n"]
    assert capfd.readouterr().err == ""


def test_stderr_to_log_leaves_what_stands_before_and_after_on_stderr(capfd):
    write("before ")
    with stderr_to_log("loading"):
        write("inside ")
    write("after")
    assert capfd.readouterr().err == "before after"


def test_stderr_to_log_keeps_text_that_python_had_not_written_yet_on_stderr(capfd):
    sys.stderr.write("early ")
    with stderr_to_log("loading"):
        write("inside ")
    sys.stderr.write("late")
    sys.stderr.flush()
    assert capfd.readouterr().err == "early late"


def fail():
    with stderr_to_log("loading"):
        write("the reason\n")
        raise ImportError("no such library")


def test_stderr_to_log_brings_everything_back_with_an_error(capfd, caplog):
    with caplog.at_level(logging.DEBUG, "hvdtrain.quiet"), pytest.raises(ImportError, match=r"^no such library$"):
        fail()
    assert capfd.readouterr().err == "the reason\n"
    assert caplog.messages == []


def interrupt():
    with stderr_to_log("loading"):
        write("a page of notices\n")
        raise KeyboardInterrupt


def test_interrupt_brings_nothing_back(capfd):
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    write("after")
    assert capfd.readouterr().err == "after"


def test_stderr_to_log_takes_bytes_that_are_no_text(caplog):
    with caplog.at_level(logging.DEBUG, "hvdtrain.quiet"), stderr_to_log("loading"):
        os.write(2, b"\xff!")
    assert caplog.messages == ["loading: �!"]


def open_files():
    return len(os.listdir("/proc/self/fd"))


def test_stderr_to_log_leaves_no_file_open():
    before = open_files()
    for _ in range(5):
        with stderr_to_log("loading"):
            write("a notice\n")
    assert open_files() == before


def test_stderr_to_log_leaves_no_file_open_after_an_error():
    before = open_files()
    for _ in range(5):
        with pytest.raises(ImportError):
            fail()
    assert open_files() == before


# ---------------------------------------------------------------- the file of what was kept off
def test_write_caught_keeps_each_line_with_its_source(tmp_path):
    with stderr_to_log("loading"):
        write("one\ntwo")
    with stderr_to_log("starting"):
        write("three\n")
    write_caught(tmp_path / "startup.log")
    assert (tmp_path / "startup.log").read_text() == "loading: one\nloading: two\nstarting: three\n"


def test_write_caught_makes_no_file_for_nothing(tmp_path):
    with stderr_to_log("loading"):
        pass
    write_caught(tmp_path / "startup.log")
    assert list(tmp_path.iterdir()) == []


def test_write_caught_replaces_a_link_and_never_follows_it(tmp_path):
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / "startup.log").symlink_to(other)
    with stderr_to_log("loading"):
        write("a notice\n")
    write_caught(tmp_path / "startup.log")
    assert other.read_text() == "precious"
    assert (tmp_path / "startup.log").read_text() == "loading: a notice\n"


def test_write_caught_that_cannot_write_ends_no_run(tmp_path, caplog):
    (tmp_path / "startup.log").mkdir()
    with stderr_to_log("loading"):
        write("a notice\n")
    with caplog.at_level(logging.DEBUG, "hvdtrain.quiet"):
        write_caught(tmp_path / "startup.log")
    assert "startup.log: not written: " in caplog.messages[-1]
