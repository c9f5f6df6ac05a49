"""The toy job that writes, per rank, which interpreter runs it."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

_spec = importlib.util.spec_from_file_location("toy", Path(__file__).parent / "toy.py")
_toy = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_toy)

config, eval_data = _toy.config, _toy.eval_data
torch_model, torch_loss, torch_metrics = _toy.torch_model, _toy.torch_loss, _toy.torch_metrics
tensorflow_model, tensorflow_loss = _toy.tensorflow_model, _toy.tensorflow_loss
tensorflow_metrics = _toy.tensorflow_metrics


def train_data():
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    (Path(os.environ["HVDTRAIN_TEST_FOLDER"]) / f"python-{rank}").write_text(sys.executable)
    return _toy.train_data()
