"""A small net with batch normalisation and dropout."""

from __future__ import annotations

import normed

config, train_data = normed.config, normed.train_data
torch_loss, tensorflow_loss = normed.torch_loss, normed.tensorflow_loss


def torch_model():
    from torch import nn

    return normed.torch_model(("drop", nn.Dropout(0.25)))


def tensorflow_model():
    from keras import layers

    return normed.tensorflow_model(layers.Dropout(0.25))
