from __future__ import annotations

import logging
import os
import sys

import pytest

from hvdtrain.quiet import stderr_to_log


def write(text):
    """Write as compiled code does, past ``sys.stderr``."""
    os.write(2, text.encode())


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
