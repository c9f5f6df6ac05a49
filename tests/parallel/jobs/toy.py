"""One weight and the loss ``w x``, in both frameworks; every number is exact in float32, in any order of summation."""

from __future__ import annotations

import numpy as np

import hvdtrain

config = hvdtrain.TrainConfig(epochs=2, global_batch_size=4, learning_rate=0.5, shuffle=False, log_every_steps=1)


def train_data():
    return [{"x": np.float32(x)} for x in range(10)]


def eval_data():
    return [{"x": np.float32(x)} for x in (1, 2, 3, 6)]


def torch_model():
    import torch

    class Toy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return self.w * x

    return Toy()


def torch_loss(model, batch):
    return model(batch["x"])


def torch_metrics(model, batch):
    return {"twice": 2 * batch["x"]}


def tensorflow_model():
    import keras

    class Toy(keras.Model):
        def build(self, shape):
            self.w = self.add_weight(name="w", shape=(), initializer="zeros")

        def call(self, x):
            return self.w * x

    return Toy()


def tensorflow_loss(model, batch):
    return model(batch["x"])


def tensorflow_metrics(model, batch):
    return {"twice": 2 * batch["x"]}
