from __future__ import annotations

import subprocess
import sys
import time

import pytest
from tensorboardX.proto.event_pb2 import Event

from hvdtrain.tensorboard import TensorBoard
from tests.unit.test_callbacks import EVAL, TRAIN, report_of, trainer_of


def read_scalars(file):
    """Return ``(tag, step, value)`` of every scalar; a record is length, check, bytes, check."""
    raw, place, found = file.read_bytes(), 0, []
    while place < len(raw):
        length = int.from_bytes(raw[place : place + 8], "little")
        event = Event.FromString(raw[place + 12 : place + 12 + length])
        found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
        place += 12 + length + 4
    return found


def test_tensorboard_writes_every_number_against_samples_seen(tmp_path):
    board = TensorBoard(tmp_path)
    board.on_step_end(trainer_of(), report_of(TRAIN))
    board.on_step_end(trainer_of(), report_of(None))
    board.on_evaluate(trainer_of(), EVAL)
    board.close()
    (file,) = tmp_path.iterdir()
    assert read_scalars(file) == [
        ("train/loss", 8, pytest.approx(0.123456, rel=1e-6)),
        ("train/grad_norm", 8, pytest.approx(12345.678, rel=1e-6)),
        ("train/learning_rate", 8, pytest.approx(0.1, rel=1e-6)),
        ("eval/loss", 10, 0.5),
    ]


def test_tensorboard_can_be_read_while_training_runs(tmp_path):
    board = TensorBoard(tmp_path)
    board.on_evaluate(trainer_of(), EVAL)
    (file,) = tmp_path.iterdir()
    deadline = time.monotonic() + 5
    while not (seen := read_scalars(file)) and time.monotonic() < deadline:
        time.sleep(0.1)
    board.close()
    assert seen == [("eval/loss", 10, 0.5)]


def test_tensorboard_in_a_process_without_torch_loads_no_torch(tmp_path):
    program = (
        "import sys, pathlib; from hvdtrain.tensorboard import TensorBoard; "
        "TensorBoard(pathlib.Path(sys.argv[1])).close(); print('torch' in sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert finished.stdout.strip() == "False"
