"""Where mpirun's own words are kept, and for how long."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hvdtrain.errors import ConfigError
from hvdtrain.launch.log import LauncherLog, default_path


def test_default_path_follows_the_specification_of_state_folders():
    assert default_path({"XDG_STATE_HOME": "/state"}) == Path("/state/hvdtrain/launch.log")
    home = Path.home() / ".local/state/hvdtrain/launch.log"
    assert default_path({}) == home
    assert default_path({"XDG_STATE_HOME": "relative"}) == home


def test_each_launch_begins_with_time_and_command(tmp_path):
    path = tmp_path / "folder" / "launch.log"
    for word in ("a b", "c"):
        log = LauncherLog(path, ["prog", word])
        log.write(b"first\n")
        log.write(b"second\n")
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}"
    told = "first\nsecond\n"
    assert re.fullmatch(f"== {time} prog 'a b'\n{told}== {time} prog c\n{told}", path.read_text())


def test_a_launch_with_nothing_to_say_leaves_no_line(tmp_path):
    path = tmp_path / "launch.log"
    LauncherLog(path, ["prog"])
    assert path.read_text() == ""


def test_a_large_log_keeps_its_last_whole_lines(tmp_path):
    path = tmp_path / "launch.log"
    path.write_text("".join(f"line {number}\n" for number in range(200_000)))
    LauncherLog(path, ["prog"])
    lines = path.read_text().splitlines()
    assert path.stat().st_size <= 1 << 18
    assert lines == [f"line {number}" for number in range(200_000 - len(lines), 200_000)]
    assert len(lines) > 10_000
    assert [entry.name for entry in tmp_path.iterdir()] == ["launch.log"]


def test_a_file_of_the_user_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(ConfigError) as caught:
        LauncherLog(tmp_path, ["prog"])
    assert str(caught.value) == (
        f"launch: --launcher-log must be a file that can be written, got {str(tmp_path)!r} "
        f"([Errno 21] Is a directory: {str(tmp_path)!r}). Check the path."
    )


def test_a_default_file_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "hvdtrain").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    log = LauncherLog(None, ["prog"])
    log.write(b"text\n")
    assert log.path is None
