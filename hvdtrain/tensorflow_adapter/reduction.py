"""One reduction per update in TensorFlow: the bridge that makes Horovod's wrapped optimizer reduce under Keras 3.

Horovod 0.28.1 reduces in ``compute_gradients``, which Keras 3 neither has nor calls: a wrapped Keras 3 optimizer
trains each rank alone, without an error. The bridge gives Horovod the method it looks for; it hands over
gradients that are computed already, so that accumulated ones are reduced once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow.keras as hvd
import keras
import tensorflow as tf


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


def wrap(optimizer: keras.optimizers.Optimizer, compression: str) -> Any:
    """Return a new optimizer of the same settings whose ``compute_gradients`` sums over ranks, as one group."""
    bridged: Any = type(type(optimizer).__name__, (_Bridge, type(optimizer)), {})
    return hvd.DistributedOptimizer(
        bridged.from_config(optimizer.get_config()),
        compression=hvd.Compression.fp16 if compression == "fp16" else hvd.Compression.none,
        op=hvd.Sum,
        groups=1,
        sparse_as_dense=True,
    )


def reduce_gradients(
    optimizer: Any, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable]
) -> list[tf.Tensor]:
    """Return the sums over ranks of ``gradients``, one per variable; must run on every rank."""
    pairs = optimizer.compute_gradients(gradients, [variable.value for variable in variables])
    return [gradient for gradient, _ in pairs]
