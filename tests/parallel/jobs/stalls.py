"""A job in which one rank stops moving at step 3: ``HVDTRAIN_TEST_STALL=kind:rank``."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

import hvdtrain
from hvdtrain import preparation
from hvdtrain.communicator import launched_as

config = hvdtrain.TrainConfig(epochs=12, global_batch_size=8, learning_rate=1e-4, stall_timeout_s=4.0)

KIND, RANK = os.environ["HVDTRAIN_TEST_STALL"].split(":")
IS_ME = launched_as()[0] == int(RANK)


class Slow:
    """Forty samples, of which the one at row 30 never comes."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if KIND == "data" and IS_ME and index == 30:
            time.sleep(100)  # slow sample
        return {"x": np.full(2, index, np.float32), "y": np.ones(1, np.float32)}


class Stall(hvdtrain.Callback):
    """Stops this rank, or makes it call a collective that no other rank calls."""

    def on_step_end(self, trainer, report):
        if KIND == "suspend" and report.global_step == 5:
            time.sleep(13)
        if report.global_step != 3 or not IS_ME:
            return
        if KIND == "sleep":
            time.sleep(100)  # slow callback
        if KIND == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        if KIND == "collective":
            trainer.communicator.barrier()  # rank-only barrier


_all_callbacks = preparation.Preparation._all_callbacks
preparation.Preparation._all_callbacks = lambda trainer: [*_all_callbacks(trainer), Stall()]


def train_data():
    return Slow()


def torch_model():
    from torch import nn

    return nn.Linear(2, 1)


def torch_loss(model, batch):
    return (model(batch["x"]) - batch["y"]) ** 2


def tensorflow_model():
    import keras

    return keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])


def tensorflow_loss(model, batch):
    return (model(batch["x"]) - batch["y"]) ** 2
