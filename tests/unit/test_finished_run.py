"""What a comparison reads of a run; what it refuses is in ``test_compare.py``."""

from __future__ import annotations

import json

from hvdtrain.finished_run import Run
from tests.unit.made_runs import make_run, row, write_run

ROWS = [row(step, 1.0) for step in (1, 2, 3)]


def test_weights_are_found_at_the_end_and_at_every_checkpoint(tmp_path):
    run = make_run(tmp_path / "run", ROWS, {"w": [3.0]}, checkpoints={1: {"w": [1.0]}})
    assert run.saved_samples() == {4, 12}
    assert [run.weights_at(seen)["w"].tolist() for seen in (4, 12)] == [[1.0], [3.0]]
    assert run.weights_at(8) is None


def test_run_of_an_earlier_version_ends_where_its_rows_end(tmp_path):
    path = write_run(tmp_path / "run", ROWS, {"w": [3.0]})
    run = Run.read(path)
    assert (run.samples_seen, run.began_from) == (12, "")


def test_tensors_that_one_framework_alone_writes_are_left_out(tmp_path):
    weights = {"w": [3.0], "norm.num_batches_tracked": [7.0]}
    run = make_run(tmp_path / "run", ROWS, weights, checkpoints={1: weights})
    assert list(run.weights) == list(run.weights_at(4)) == ["w"]


def test_rows_of_evaluations_are_left_out(tmp_path):
    path = write_run(tmp_path / "run", ROWS, {"w": [3.0]})
    with (path / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"event": "eval", "global_step": 3, "samples_seen": 12, "loss": 5.0}) + "\n")
    assert [found["loss"] for found in Run.read(path).rows.values()] == [1.0, 1.0, 1.0]
