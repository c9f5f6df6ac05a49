"""The loop that the TensorFlow contenders share, as their users write it: mean loss, clip, AdamW, one tf.function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tests.bench.contenders.problem import Problem, Stopwatch


def build(problem: Problem) -> tuple[keras.Model, keras.optimizers.Optimizer]:
    keras.utils.set_random_seed(0)
    model = problem.job.required("tensorflow_model")()
    first = next(problem.steps(0, 1))[0]
    mean_loss(problem, model, {name: tf.constant(array) for name, array in first.items()})
    optimizer = keras.optimizers.AdamW(1e-3)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def mean_loss(problem: Problem, model: keras.Model, batch: Any) -> tf.Tensor:
    found = problem.job.required("tensorflow_loss")(model, batch)
    losses, weights = found if isinstance(found, tuple) else (found, tf.ones_like(found))
    return tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)


def gradients_of(problem: Problem, model: keras.Model, parts: Sequence[Any]) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Return the mean gradient over the micro-batches, and the mean loss."""
    sums, total = None, 0.0
    for batch in parts:
        with tf.GradientTape() as tape:
            loss = mean_loss(problem, model, batch) / len(parts)
        found = [tf.convert_to_tensor(g) for g in tape.gradient(loss, model.trainable_variables)]
        sums = found if sums is None else [a + b for a, b in zip(sums, found, strict=True)]
        total += loss
    return sums, total


def clipped(problem: Problem, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    if problem.clip_norm is None:
        return gradients
    return tf.clip_by_global_norm(gradients, problem.clip_norm)[0]


def run(problem: Problem, step: Callable[[Sequence[Any]], tf.Tensor], rank: int, size: int) -> None:
    """Train and tell the times."""
    compiled, watch = tf.function(step), Stopwatch(problem)
    for parts in problem.steps(rank, size):
        float(compiled([{name: tf.constant(array) for name, array in batch.items()} for batch in parts]))
        watch.step_done()
    watch.tell(rank)
