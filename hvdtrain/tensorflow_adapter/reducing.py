"""The ranks that time Horovod's sum in TensorFlow: ``... -- python -m hvdtrain.tensorflow_adapter.reducing``."""

from __future__ import annotations

from collections.abc import Callable

import horovod.tensorflow as hvd
import tensorflow as tf

from hvdtrain.communicator import connect
from hvdtrain.forecast.reducing import tell_reducing


def make_reduce(num_values: int) -> Callable[[], object]:
    """Return what sums ``num_values`` float32 values over ranks, as one group."""
    values = [tf.zeros(num_values // 2), tf.zeros(num_values - num_values // 2)]
    # An argument, because TensorFlow folds the sum of a constant away.
    summed = tf.function(lambda given: hvd.grouped_allreduce(given, op=hvd.Sum), autograph=False)
    return lambda: [part.numpy() for part in summed(values)]


if __name__ == "__main__":
    communicator = connect()
    hvd.init()
    tell_reducing(communicator, make_reduce)
