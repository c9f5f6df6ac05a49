from __future__ import annotations

import json
import os
import sys

import pytest

from hvdtrain.errors import ConfigError
from hvdtrain.timed_run import launch_words, require_success, take_run, threads_environ, train_words


def test_threads_are_the_share_of_the_cores_unless_they_are_set():
    cores = len(os.sched_getaffinity(0))
    assert threads_environ(1, {})["OMP_NUM_THREADS"] == str(cores)
    assert threads_environ(10 * cores, {})["OMP_NUM_THREADS"] == "1"
    assert threads_environ(1, {"OMP_NUM_THREADS": "7", "HOME": "/x"}) == {"OMP_NUM_THREADS": "7", "HOME": "/x"}


def test_a_launch_uses_this_interpreter():
    assert launch_words(3, ["a", "b"])[-4:] == ["3", "--", "a", "b"]
    assert launch_words(3, ["a"])[0] == sys.executable


def test_the_own_run_folder_stands_last_and_wins(tmp_path):
    words = train_words(tmp_path / "job.py", "torch", tmp_path / "run", "--run-dir", "other")
    assert words[-2:] == ["--run-dir", str(tmp_path / "run")]


def test_a_failure_holds_the_end_of_what_was_said():
    require_success("plan", 2, ["train"], 0, "noise")
    with pytest.raises(ConfigError, match=r"plan: train job.py must end well on 2 ranks, got 3:\n  line 2\n") as told:
        require_success("plan", 2, ["train", "job.py"], 3, "".join(f"line {i}\n\n" for i in range(10)))
    assert str(told.value).endswith("line 9")


def test_a_run_is_read_and_its_folder_removed(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    rows = [{"event": "train", "time_s": s} for s in (1.0, 1.5, 1.75)] + [{"event": "eval", "time_s": 9.0}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ranks = [{"memory_bytes": 5}, {"memory_bytes": 7}]
    (folder / "summary.json").write_text(json.dumps({"split": {"data": 1.0}, "ranks": ranks}))
    taken = take_run(folder)
    assert (taken.num_steps, taken.step_ms, taken.split) == (3, (500.0, 250.0), {"data": 1.0})
    assert (taken.memory_bytes, taken.state) == (7, None)
    assert not folder.exists()
