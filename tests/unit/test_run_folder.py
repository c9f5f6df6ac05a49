from __future__ import annotations

import json
import os

import pytest

from hvdtrain.errors import ConfigError
from hvdtrain.run_folder import RunFolder


def test_open_makes_the_folder_and_its_parents(tmp_path):
    folder = RunFolder.open(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert folder.checkpoints == tmp_path / "a" / "b" / "checkpoints"
    folder.close()


def test_close_leaves_only_what_was_written(tmp_path):
    folder = RunFolder.open(tmp_path / "run")
    folder.write_config({"seed": 3})
    folder.append_row({"event": "train"})
    folder.write_summary({"epoch": 1})
    folder.close()
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["config.json", "metrics.jsonl", "summary.json"]


def test_config_and_summary_are_json(tmp_path):
    folder = RunFolder.open(tmp_path)
    folder.write_config({"seed": 3, "betas": [0.9, 0.999]})
    folder.write_summary({"eval": None})
    folder.write_summary({"eval": {"loss": 0.5}})
    folder.close()
    assert json.loads((tmp_path / "config.json").read_text()) == {"seed": 3, "betas": [0.9, 0.999]}
    assert json.loads((tmp_path / "summary.json").read_text()) == {"eval": {"loss": 0.5}}


def test_append_row_adds_whole_lines_that_can_be_read_at_once(tmp_path):
    folder = RunFolder.open(tmp_path)
    seen = []
    for step in (1, 2):
        folder.append_row({"event": "train", "global_step": step, "loss": 0.1})
        seen.append((tmp_path / "metrics.jsonl").read_text())
    folder.close()
    first = '{"event": "train", "global_step": 1, "loss": 0.1}\n'
    assert seen == [first, first + '{"event": "train", "global_step": 2, "loss": 0.1}\n']


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "summary.json", "checkpoints"])
def test_open_of_a_used_folder_raises(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError) as caught:
        RunFolder.open(tmp_path)
    assert str(caught.value) == (
        f"run folder: {tmp_path} must be new, got one that holds {name}. Choose another --run-dir."
    )


def test_open_of_a_used_folder_names_all_that_it_holds(tmp_path):
    (tmp_path / "summary.json").write_text("")
    (tmp_path / "config.json").write_text("")
    with pytest.raises(ConfigError, match=r"holds config\.json, summary\.json\. "):
        RunFolder.open(tmp_path)


def test_open_of_a_used_folder_leaves_it_as_it_was(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError):
        RunFolder.open(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json"]


def test_open_takes_a_folder_that_holds_something_else(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    RunFolder.open(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_open_of_a_folder_in_use_raises_until_it_is_closed(tmp_path):
    first = RunFolder.open(tmp_path)
    with pytest.raises(ConfigError) as caught:
        RunFolder.open(tmp_path)
    assert str(caught.value) == (
        f"run folder: {tmp_path} is in use by another run. Wait for it, or choose another --run-dir."
    )
    first.close()
    RunFolder.open(tmp_path).close()


def test_open_after_a_run_that_died_without_closing_works(tmp_path):
    (tmp_path / ".lock").write_text("")
    RunFolder.open(tmp_path).close()


def test_open_where_a_file_stands_raises(tmp_path):
    file = tmp_path / "run"
    file.write_text("")
    with pytest.raises(ConfigError) as caught:
        RunFolder.open(file)
    assert str(caught.value) == (
        f"run folder: {file} must be a folder that can be written, got [Errno 17] File exists: '{file}'. "
        "Choose another --run-dir."
    )


def test_open_of_a_folder_that_cannot_be_written_raises(tmp_path):
    tmp_path.chmod(0o755)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)
        with pytest.raises(ConfigError) as caught:
            RunFolder.open(tmp_path.relative_to(tmp_path) / "run")
    finally:
        os.seteuid(user)
    assert str(caught.value) == (
        "run folder: run must be a folder that can be written, got [Errno 13] Permission denied: 'run'. "
        "Choose another --run-dir."
    )
