"""Models for the tests of exactness, in Keras; the same names as in ``exact_torch``."""

from __future__ import annotations

from typing import Any

import hvdtrain.tensorflow_adapter.trainer  # isort: skip  # noqa: F401 - sets the backend first

import keras
import tensorflow as tf


class Lookup(keras.Model):
    """Two rows of width two, from zero; gradients of an embedding are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(2, 2, embeddings_initializer="zeros")

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(self.table(ids), -1)


class Spare(keras.Model):
    """``w x``, beside ``spare`` ones that the loss does not use."""

    def __init__(self, num_spare: int = 2) -> None:
        super().__init__()
        self._num_spare = num_spare

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(name="w", shape=(), initializer="zeros")
        self.spare = self.add_weight(name="spare", shape=(self._num_spare,), initializer="ones")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.w * x


class Either(keras.Model):
    """``u x`` for a batch that begins above 0, ``v x`` for another; both weights start at 1."""

    def build(self, shape: Any) -> None:
        self.u = self.add_weight(name="u", shape=(), initializer="ones")
        self.v = self.add_weight(name="v", shape=(), initializer="ones")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.cond(x[0] > 0, lambda: self.u * x, lambda: self.v * x)


class Headed(keras.Model):
    """``w x`` plus a dense layer ``head``."""

    def __init__(self) -> None:
        super().__init__()
        self.head = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(name="w", shape=(), initializer="zeros")
        self.head.build((None, 1))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.w * x + self.head(x[:, None])[:, 0]


def headed(*, trains: bool) -> keras.Model:
    """Return a model whose ``head`` trains, or is frozen."""
    model = Headed()
    set_trains(model, trains)
    return model


def set_trains(model: keras.Model, trains: bool) -> None:
    """Freeze or unfreeze ``head``."""
    model.head.trainable = trains
