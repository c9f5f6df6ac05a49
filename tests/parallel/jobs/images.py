"""A small convolutional net with smooth activations and average pooling on random images, in both frameworks.

31 images in batches of 10 leave one, so that on 2 and 3 ranks shares differ and some are empty.
"""

from __future__ import annotations

import numpy as np

import hvdtrain

config = hvdtrain.TrainConfig(epochs=3, global_batch_size=10, learning_rate=0.05, momentum=0.9, seed=3)


def train_data():
    rng = np.random.default_rng(5)
    images = rng.normal(size=(31, 8, 8, 1))
    return [{"x": image, "label": row % 3} for row, image in enumerate(images)]


def torch_model():
    import torch

    layers = [torch.nn.Conv2d(1, 4, 3), torch.nn.Tanh(), torch.nn.AvgPool2d(2), torch.nn.Flatten()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(36, 3))


def torch_loss(model, batch):
    import torch

    logits = model(batch["x"].permute(0, 3, 1, 2))
    return torch.nn.functional.cross_entropy(logits, batch["label"], reduction="none")


def tensorflow_model():
    import keras

    layers = [keras.layers.Conv2D(4, 3, activation="tanh", name="conv"), keras.layers.AveragePooling2D(2)]
    head = [keras.layers.Flatten(), keras.layers.Dense(3, name="head")]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers, *head])


def tensorflow_loss(model, batch):
    import tensorflow as tf

    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch["label"], logits=model(batch["x"]))
