"""A dense net on made-up images, in both frameworks: 0.7, 5.8 or 20 M parameters by ``--size``."""

from __future__ import annotations

import numpy as np

import hvdtrain

SIZE = hvdtrain.option("size", "tiny", choices=("tiny", "small", "medium"))
WIDTH = {"tiny": 512, "small": 2048, "medium": 4096}[SIZE]

config = hvdtrain.TrainConfig(global_batch_size=128, max_steps=40, optimizer="adamw", learning_rate=1e-3)


class Images:
    """Rows of two arrays, handed out a batch at a time."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(8192, 784)).astype(np.float32)
        self.y = rng.integers(0, 10, 8192)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.y[index]}

    def __getitems__(self, rows):
        return [self[index] for index in rows]


def train_data():
    return Images()


def torch_model():
    from torch import nn

    layers = [nn.Linear(784, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 10)]
    return nn.Sequential(*layers)


def torch_loss(model, batch):
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def tensorflow_model():
    from keras import Sequential, layers

    hidden = [layers.Dense(WIDTH, activation="gelu") for _ in range(2)]
    return Sequential([layers.Input((784,)), *hidden, layers.Dense(10)])


def tensorflow_loss(model, batch):
    from keras.losses import sparse_categorical_crossentropy

    return sparse_categorical_crossentropy(batch["y"], model(batch["x"]), from_logits=True)
