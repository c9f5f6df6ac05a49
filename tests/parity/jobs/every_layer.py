"""One layer of each kind that has a neutral layout, each with weights that are all different."""

from __future__ import annotations

import numpy as np

import hvdtrain

config = hvdtrain.TrainConfig(max_steps=0, global_batch_size=4)


def train_data():
    rng = np.random.default_rng(0)
    return [{"id": np.int64(row), "x": rng.normal(size=(6, 6, 3)).astype(np.float32)} for row in range(4)]


def torch_model():
    import torch
    from torch import nn

    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm, self.batch = nn.Embedding(5, 3), nn.LayerNorm(3), nn.BatchNorm1d(3)
            self.line, self.plane = nn.Conv1d(3, 4, 2), nn.Conv2d(3, 4, (2, 3))
            self.depth, self.fc = nn.Conv2d(3, 6, (3, 2), groups=3), nn.Linear(3, 2)

        def forward(self, batch):
            x = batch["x"].permute(0, 3, 1, 2)
            rows = self.fc(self.batch(self.norm(self.table(batch["id"])))).sum(1)
            parts = (self.line(x[:, :, 0]).sum((1, 2)), self.plane(x).sum((1, 2, 3)), self.depth(x).sum((1, 2, 3)))
            return rows + sum(parts)

    model = Layers()
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            torch.nn.init.uniform_(tensor, 0.5, 1.5)
    return model


def torch_loss(model, batch):
    return model(batch)


def tensorflow_model():
    import keras
    import tensorflow as tf
    from keras import layers

    class Layers(keras.Model):
        def __init__(self):
            super().__init__()
            self.table, self.norm = layers.Embedding(5, 3), layers.LayerNormalization()
            self.batch, self.fc = layers.BatchNormalization(), layers.Dense(2)
            self.line, self.plane = layers.Conv1D(4, 2), layers.Conv2D(4, (2, 3))
            self.depth = layers.DepthwiseConv2D((3, 2), depth_multiplier=2)

        def call(self, batch):
            x = batch["x"]
            rows = tf.reduce_sum(self.fc(self.batch(self.norm(self.table(batch["id"])))), 1)
            parts = [tf.reduce_sum(layer(x), (1, 2, 3)) for layer in (self.plane, self.depth)]
            return rows + sum(parts) + tf.reduce_sum(self.line(x[:, 0]), (1, 2))

    model = Layers()
    model({name: tf.stack([sample[name] for sample in train_data()]) for name in ("id", "x")})
    rng = np.random.default_rng(1)
    for variable in model.variables:
        variable.assign(rng.uniform(0.5, 1.5, variable.shape))
    return model


def tensorflow_loss(model, batch):
    return model(batch)
