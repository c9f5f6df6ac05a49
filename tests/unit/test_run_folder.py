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
        f"run folder: {tmp_path} must be new, got one that holds {name}. Continue it with --resume, "
        "or choose another --run-dir."
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


# ---------------------------------------------------------------- a run that goes on
@pytest.mark.parametrize("names", [[], ["config.json", "metrics.jsonl", "summary.json"]])
def test_open_of_a_run_that_goes_on_takes_what_it_holds(tmp_path, names):
    for name in names:
        (tmp_path / name).write_text("")
    (tmp_path / "checkpoints").mkdir()
    RunFolder.open(tmp_path, resumes=True).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "checkpoints"])


WRITTEN = ["config.json", "metrics.jsonl", "summary.json", ".config.json.tmp", ".metrics.jsonl.tmp", ".lock"]


@pytest.mark.parametrize("name", [*WRITTEN, "checkpoints"])
def test_open_of_a_folder_with_a_link_that_leads_out_of_it_raises(tmp_path, name):
    outside = tmp_path / "outside"
    outside.write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(outside)
    with pytest.raises(ConfigError, match=f"{name} is a link, not a f"):
        RunFolder.open(tmp_path / "run", resumes=True)
    assert outside.read_text() == "precious"
    assert [path.name for path in (tmp_path / "run").iterdir()] == [name]
    (tmp_path / "run" / name).unlink()
    RunFolder.open(tmp_path / "run", resumes=True).close()


@pytest.mark.parametrize("name", WRITTEN)
def test_open_of_a_folder_with_a_pipe_raises_at_once(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match=f"{name} is not a regular file"):
        RunFolder.open(tmp_path, resumes=True)


ROWS = [
    *({"event": "train", "global_step": step} for step in (1, 2)),
    {"event": "eval", "global_step": 2},
    *({"event": "train", "global_step": step} for step in (3, 4)),
    {"event": "eval", "global_step": 4},
    {"event": "train", "global_step": 5},
]


@pytest.mark.parametrize(
    ("step", "eval_step", "kept"),
    [(0, 0, 0), (1, 0, 1), (2, 0, 2), (2, 2, 3), (3, 2, 4), (4, 2, 5), (4, 4, 6), (5, 4, 7), (9, 9, 7)],
)
def test_cut_back_keeps_the_rows_up_to_the_restored_step(tmp_path, step, eval_step, kept):
    lines = [json.dumps(row) + "\n" for row in ROWS]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    (tmp_path / "summary.json").write_text("{}")
    folder = RunFolder.open(tmp_path, resumes=True)
    folder.cut_back(step, eval_step)
    folder.append_row({"event": "train", "global_step": 8})
    folder.close()
    added = '{"event": "train", "global_step": 8}\n'
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(lines[:kept]) + added
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("torn", ["{", '{"event": "train", "global_st', '{"event": "train", "global_step": 2}', "\0\0"])
def test_cut_back_takes_a_torn_last_row_away(tmp_path, torn):
    whole = '{"event": "train", "global_step": 1}\n'
    (tmp_path / "metrics.jsonl").write_text(whole + torn)
    folder = RunFolder.open(tmp_path, resumes=True)
    folder.cut_back(5, 5)
    folder.close()
    assert (tmp_path / "metrics.jsonl").read_text() == whole


BROKEN = [
    *("", "{", '{"event": "train", "global_st', "\0" * 4096, "\ud8ff", "[" * 100_000, "null", "[1]", "3", "{}"),
    *('{"event": "train"}', '{"event": "train", "global_step": "1"}', '{"event": "train", "global_step": 1e999}'),
    '{"event": "train", "global_step": 1}{"event": "train", "global_step": 2}',
    "x" * (3 << 20),
]


@pytest.mark.parametrize("broken", range(len(BROKEN)))
@pytest.mark.parametrize("place", [0, 3, 7])
def test_cut_back_takes_a_broken_row_away_and_keeps_those_after_it(tmp_path, broken, place):
    lines = [json.dumps(row) + "\n" for row in ROWS]
    torn = [*lines[:place], BROKEN[broken] + "\n", *lines[place:]]
    (tmp_path / "metrics.jsonl").write_bytes("".join(torn).encode(errors="surrogatepass"))
    folder = RunFolder.open(tmp_path, resumes=True)
    folder.cut_back(4, 4)
    folder.close()
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(lines[:6])


def test_cut_back_without_rows_writes_none(tmp_path):
    folder = RunFolder.open(tmp_path)
    folder.cut_back(5, 5)
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_read_summary_returns_it_when_there_is_one(tmp_path):
    folder = RunFolder.open(tmp_path)
    assert folder.read_summary() is None
    folder.write_summary({"global_step": 3})
    assert folder.read_summary() == {"global_step": 3}
    folder.close()


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "\0\0", "[" * 100_000, '"' + "x" * (2 << 20) + '"'])
def test_read_summary_that_is_broken_is_none(tmp_path, text):
    folder = RunFolder.open(tmp_path)
    (tmp_path / "summary.json").write_text(text)
    assert folder.read_summary() is None
    folder.close()
