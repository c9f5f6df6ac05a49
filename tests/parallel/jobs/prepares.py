"""The toy job on a file that ``prepare_data`` writes slowly; its folder comes from the environment."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path

import numpy as np

_spec = importlib.util.spec_from_file_location("toy", Path(__file__).parent / "toy.py")
_toy = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_toy)

config = _toy.config
torch_model, torch_loss = _toy.torch_model, _toy.torch_loss
tensorflow_model, tensorflow_loss = _toy.tensorflow_model, _toy.tensorflow_loss

_FOLDER = Path(os.environ["HVDTRAIN_TEST_FOLDER"])


def prepare_data():
    with (_FOLDER / "calls").open("a") as stream:
        stream.write(f"{os.getpid()}\n")
    if os.environ.get("HVDTRAIN_TEST_FAILS"):
        raise OSError("the download broke off")
    time.sleep(2)
    (_FOLDER / "numbers").write_text("1 2 3 6")


def train_data():
    return [{"x": np.float32(text)} for text in (_FOLDER / "numbers").read_text().split()]
