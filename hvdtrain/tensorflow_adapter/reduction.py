"""One reduction per update in TensorFlow: the bridge that makes Horovod's wrapped optimizer reduce under Keras 3.

Horovod 0.28.1 reduces in ``compute_gradients``, which Keras 3 neither has nor calls: a wrapped Keras 3 optimizer
trains each rank alone, without an error. The bridge gives Horovod the method it looks for; it hands over
gradients that are computed already, so that accumulated ones are reduced once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from horovod.tensorflow.keras import DistributedOptimizer

from hvdtrain.compression import MAX_EXPONENT, SUM_EXPONENT


class CallableList(list[Any]):
    """A list that is also a function of nothing: Horovod calls ``variables()``, Keras 3 reads ``variables``."""

    def __call__(self) -> CallableList:
        """Return itself."""
        return self


class _Bridge:
    """What Horovod 0.28.1 needs of an optimizer's class, mixed in front of a Keras 3 one."""

    @property
    def variables(self) -> CallableList:
        return CallableList(super().variables)  # type: ignore[misc]

    def compute_gradients(
        self, loss: Sequence[tf.Tensor], var_list: Sequence[tf.Variable], tape: Any = None
    ) -> list[tuple[tf.Tensor, tf.Variable]]:
        """Return the gradients that the caller passes in the place of a loss."""
        return list(zip(loss, var_list, strict=True))


def wrap(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return a new optimizer of the same settings whose ``compute_gradients`` sums over ranks, as one group."""
    bridged: Any = type(type(optimizer).__name__, (_Bridge, type(optimizer)), {})
    wrapped = DistributedOptimizer(
        bridged.from_config(optimizer.get_config()),
        op=hvd.Sum,
        groups=1,
        sparse_as_dense=True,
    )
    # As a tf.function, which Horovod makes of it, AutoGraph would rewrite all that it calls: seconds, and memory.
    wrapped._allreduce_grads = wrapped._allreduce_grads.python_function
    return wrapped


def reduce_gradients(
    optimizer: Any, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable], compression: str
) -> list[tf.Tensor]:
    """Return the sums over ranks of ``gradients``, one per variable; must run on every rank."""
    wire, scales = gradients, None
    if compression == "fp16" and hvd.size() > 1:
        scales = agreed_scales(gradients)
        wire = [tf.cast(g * tf.cast(scale, g.dtype), tf.float16) for g, scale in zip(gradients, scales, strict=True)]
    pairs = optimizer.compute_gradients(wire, [variable.value for variable in variables])
    reduced = [gradient for gradient, _ in pairs]
    if scales is None:
        return reduced
    dtypes = [gradient.dtype for gradient in gradients]
    return [tf.cast(g, d) / tf.cast(scale, d) for g, d, scale in zip(reduced, dtypes, scales, strict=True)]


def agreed_scales(gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return one scale per gradient, equal on all ranks; see :mod:`hvdtrain.compression`. Every rank must call."""
    largest = tf.stack([tf.cast(tf.reduce_max(tf.abs(gradient)), tf.float64) for gradient in gradients])
    totals = hvd.allreduce(largest, op=hvd.Sum, name="hvdtrain.scales")
    log2 = tf.math.log(totals) / math.log(2.0)
    return tf.unstack(2.0 ** tf.minimum(SUM_EXPONENT - tf.math.ceil(log2), MAX_EXPONENT))  # type: ignore[no-any-return]
