"""A small net whose TensorFlow side uses Keras's own SGD, which keeps the rate inside the momentum, under a warm-up."""

from __future__ import annotations

import numpy as np

import hvdtrain

config = hvdtrain.TrainConfig(
    epochs=2, global_batch_size=8, optimizer="sgd", learning_rate=0.1, momentum=0.9, warmup_epochs=2
)


def train_data():
    rng = np.random.default_rng(3)
    return [{"x": x.astype(np.float32), "y": np.float32(np.sin(x.sum()))} for x in rng.normal(size=(60, 3))]


def torch_model():
    from collections import OrderedDict

    from torch import nn

    return nn.Sequential(OrderedDict(one=nn.Linear(3, 8), act=nn.Tanh(), two=nn.Linear(8, 1)))


def torch_loss(model, batch):
    return (model(batch["x"])[:, 0] - batch["y"]) ** 2


def tensorflow_model():
    from keras import Sequential, layers

    return Sequential([layers.Input((3,)), layers.Dense(8, activation="tanh", name="one"), layers.Dense(1, name="two")])


def tensorflow_loss(model, batch):
    return (model(batch["x"])[:, 0] - batch["y"]) ** 2


def tensorflow_optimizer(model):
    import keras

    return keras.optimizers.SGD(config.learning_rate, momentum=0.9)
