"""Continues a run and writes the state it begins with: ``python tells_state.py FRAMEWORK RUN_DIR OUT``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np

import hvdtrain
from hvdtrain.resume import ResumeRequest

_spec = importlib.util.spec_from_file_location("images", Path(__file__).parent / "images.py")
images = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(images)


class Tells(hvdtrain.Callback):
    def __init__(self, path):
        self._path = path

    def on_fit_begin(self, trainer):
        state = trainer.export_state()
        np.savez(self._path, **state.weights, **state.slots)


def main() -> None:
    framework, run_dir, path = sys.argv[1:]
    (hvdtrain.TorchTrainer if framework == "torch" else hvdtrain.TensorFlowTrainer)(
        getattr(images, f"{framework}_model"),
        loss=getattr(images, f"{framework}_loss"),
        config=images.config.replace(optimizer="adam", max_steps=6),
        run_dir=run_dir,
        callbacks=[Tells(path)],
        resume=ResumeRequest(is_wanted=True),
    ).fit(images.train_data())


if __name__ == "__main__":
    main()
