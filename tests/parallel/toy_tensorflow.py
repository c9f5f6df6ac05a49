"""The toy models in Keras; the same names as in ``toy_torch``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from hvdtrain.tensorflow_adapter.trainer import TensorFlowTrainer as Trainer  # isort: skip - sets the backend first

import horovod.tensorflow as hvd
import keras
import tensorflow as tf


class Toy(keras.Model):
    """``w x`` with one trained weight, beside tensors that no update may move."""

    def __init__(self, start: float = 0.0, fixed: Mapping[str, np.ndarray] | None = None) -> None:
        super().__init__()
        self._start, self._fixed = start, dict(fixed or {})

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(name="w", shape=(), initializer=_constant(self._start))
        for name, values in self._fixed.items():
            made = self.add_weight(
                name=name, shape=values.shape, dtype=str(values.dtype), initializer="zeros", trainable=False
            )
            made.assign(values)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.w * x


class Tied(keras.Model):
    """``w x + w x`` through two attributes that are one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        self.second = self.first

    def build(self, shape: Any) -> None:
        self.first.build((None, 1))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        column = x[:, None]
        return (self.first(column) + self.second(column))[:, 0]


class Masking(keras.Model):
    """Dropout, then batch normalisation inside a sub-layer ``inner``, then a sum times ``w``."""

    def __init__(self) -> None:
        super().__init__()
        norm = keras.layers.BatchNormalization(epsilon=1e-3, momentum=0.9, name="1")
        self.inner = keras.Sequential([keras.layers.Dropout(0.5, name="0"), norm], name="inner")

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(name="w", shape=(), initializer="ones")
        self.inner.build(shape)

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        return self.w * tf.reduce_sum(self.inner(x, training=training), axis=1)

    def encode(self, x: tf.Tensor) -> tf.Tensor:
        return self.inner(x)


def lazy_model(seed: int) -> keras.Model:
    """Return a layer that makes its weights at the first batch, drawn from ``seed``."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.layers.Dense(1, use_bias=False)])


def random_model(seed: int) -> keras.Model:
    """Return a network with weights drawn from ``seed``."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(4, "tanh", name="0"), keras.layers.Dense(1, name="2")]
    return keras.Sequential([keras.Input((3,)), *layers])


class TwiceNamed(keras.Model):
    """Two weights that Keras lets have one name."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(name="w", shape=(), initializer="zeros")
        self.v = self.add_weight(name="w", shape=(), initializer="zeros")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return (self.w + self.v) * x


def twice_named(start: float = 0.0) -> tuple[Any, Any]:
    """Return a model with two weights of one name, and no optimizer of its own."""
    return TwiceNamed(), None


def only_large(model: keras.Model, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Return ``w x`` where x is above 1.5 and 0 elsewhere; one graph serves both."""
    return tf.where(batch["x"] > 1.5, model(batch["x"]), 0.0)


def mean(values: tf.Tensor) -> tf.Tensor:
    """Return the scalar mean."""
    return tf.reduce_mean(values)


@contextmanager
def eager() -> Iterator[None]:
    """Run traced functions line by line inside the block."""
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def threads() -> int:
    """Return the threads of one operation."""
    return tf.config.threading.get_intra_op_parallelism_threads()


class LocalTrainer(Trainer):
    """Negative control: each rank updates by the mean gradient of its own samples."""

    def prepare(self, probe: Any) -> Any:
        signature = super().prepare(probe)
        size = self.topology.size

        def keep_local(gradients: Any, variables: Any, tape: Any = None) -> Any:
            return [(gradient * size, variable) for gradient, variable in zip(gradients, variables, strict=True)]

        self._optimizer.compute_gradients = keep_local
        return signature


class LateNormTrainer(Trainer):
    """Negative control: takes the norm of this rank's gradient after the reduction."""

    def _share_norm(self, gradients: Any, tail: Any) -> Any:
        reduced = [hvd.allreduce(g, op=hvd.Sum, name=f"late.{i}") for i, g in enumerate(gradients)]
        return super()._share_norm(reduced, tail)


class SilentTrainer(Trainer):
    """Negative control: every rank keeps the weights that it was born with."""

    def broadcast_state(self) -> None:
        pass


def _constant(value: float) -> keras.initializers.Initializer:
    return keras.initializers.Constant(value)
