"""A small net with batch normalisation."""

from __future__ import annotations

import native_sgd

config = native_sgd.config
train_data, torch_loss, tensorflow_loss = native_sgd.train_data, native_sgd.torch_loss, native_sgd.tensorflow_loss


def torch_model(*last):
    from collections import OrderedDict

    from torch import nn

    layers = OrderedDict(one=nn.Linear(3, 8), norm=nn.BatchNorm1d(8, eps=1e-3, momentum=0.1), act=nn.Tanh())
    return nn.Sequential(OrderedDict(**layers, **dict(last), two=nn.Linear(8, 1)))


def tensorflow_model(*last):
    from keras import Sequential, layers

    head = [layers.Dense(8, name="one"), layers.BatchNormalization(epsilon=1e-3, momentum=0.9, name="norm")]
    return Sequential([layers.Input((3,)), *head, layers.Activation("tanh"), *last, layers.Dense(1, name="two")])
