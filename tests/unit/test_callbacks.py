from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from hvdtrain.callbacks import Callback, JsonLines, StepReport
from hvdtrain.run_folder import RunFolder
from hvdtrain.step import StepResult
from hvdtrain.topology import Topology

RESULT = StepResult(1.0, 2.0, 2, 0.5, 0, 0)
TRAIN = {
    "event": "train",
    "epoch": 1,
    "global_step": 2,
    "samples_seen": 8,
    "loss": 0.123456,
    "grad_norm": 12345.678,
    "learning_rate": 0.1,
}
EVAL = {"event": "eval", "epoch": 1, "global_step": 3, "samples_seen": 10, "loss": 0.5, "accuracy": None}


def trainer_of(rank=0):
    return SimpleNamespace(topology=Topology(rank=rank, size=2))


def report_of(row):
    return StepReport(2, 1, RESULT, row)


HOOKS = ["on_fit_begin", "on_step_end", "on_epoch_end", "on_evaluate", "on_checkpoint", "on_fit_end", "close"]


def test_callback_has_these_hooks_in_this_order():
    assert [name for name in vars(Callback) if not name.startswith("_")] == HOOKS


@pytest.mark.parametrize("hook", HOOKS)
def test_callback_does_nothing_until_overridden(hook):
    arguments = {"on_fit_begin": [trainer_of()], "close": []}.get(hook, [trainer_of(), None])
    assert getattr(Callback(), hook)(*arguments) is None


# ---------------------------------------------------------------- json lines
def test_json_lines_appends_every_row(tmp_path):
    folder = RunFolder.open(tmp_path)
    lines = JsonLines(folder)
    lines.on_step_end(trainer_of(), report_of(TRAIN))
    lines.on_step_end(trainer_of(), report_of(None))
    lines.on_evaluate(trainer_of(), EVAL)
    folder.close()
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [TRAIN, EVAL]


def test_json_lines_without_a_folder_writes_nothing(tmp_path):
    lines = JsonLines(None)
    lines.on_step_end(trainer_of(), report_of(TRAIN))
    lines.on_evaluate(trainer_of(), EVAL)
    assert list(tmp_path.iterdir()) == []
