"""A script that unfreezes a layer after the first epoch: ``python unfreezes.py FRAMEWORK``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

import hvdtrain


class Unfreezes(hvdtrain.Callback):
    def __init__(self, models, model):
        self._models, self._model = models, model

    def on_epoch_end(self, trainer, epoch):
        self._models.set_trains(self._model, True)


def main() -> None:
    (framework,) = sys.argv[1:]
    models = importlib.import_module(f"tests.parallel.exact_{framework}")
    model = models.headed(trains=False)
    trainer = (hvdtrain.TorchTrainer if framework == "torch" else hvdtrain.TensorFlowTrainer)(
        model,
        loss=lambda model, batch: model(batch["x"]),
        config=hvdtrain.TrainConfig(global_batch_size=2, epochs=2, learning_rate=0.1, log_every_steps=100),
        callbacks=[Unfreezes(models, model)],
    )
    trainer.fit([{"x": np.float32(x)} for x in (1, 2)])


if __name__ == "__main__":
    main()
