"""The net of the problem in Keras."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.parity.peers.problem import Part, Problem

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


def build_net(problem: Problem) -> keras.Model:
    """Return the net with the problem's weights; Keras keeps kernels transposed."""
    hidden, inputs = problem.weights["fc1.weight"].shape
    first = keras.layers.Dense(hidden, activation="tanh", name="fc1")
    second = keras.layers.Dense(len(problem.weights["fc2.bias"]), name="fc2")
    model = keras.Sequential([keras.layers.Input((inputs,)), first, second])
    model.set_weights([array.T for array in problem.weights.values()])
    return model


def build_sgd(problem: Problem) -> keras.optimizers.SGD:
    """Return SGD with momentum, which is PyTorch's as long as the rate stands still."""
    return keras.optimizers.SGD(problem.lr, momentum=problem.momentum)


def sample_losses(model: keras.Model, features: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return one loss per sample."""
    return keras.losses.sparse_categorical_crossentropy(labels, model(features, training=True), from_logits=True)


def to_tensors(part: Part) -> tuple[tf.Tensor, tf.Tensor]:
    """Return features and labels."""
    return tf.constant(part[0]), tf.constant(part[1])


def read_weights(problem: Problem, model: keras.Model) -> dict[str, np.ndarray]:
    """Return the weights by PyTorch's names and layout."""
    return {name: array.T for name, array in zip(problem.weights, model.get_weights(), strict=True)}
