"""The root's values on every rank, over Horovod."""

from __future__ import annotations

from collections.abc import Mapping

import horovod.tensorflow as hvd
import tensorflow as tf


def broadcast_variables(variables: Mapping[str, tf.Variable]) -> None:
    """After this call every rank holds the root's values of ``variables``, in place, whatever their dtype."""
    for name, variable in variables.items():
        if variable.dtype == tf.string:
            continue
        value = tf.identity(variable)
        wire = tf.cast(value, tf.uint8) if variable.dtype == tf.bool else value
        wire = tf.bitcast(value, tf.uint16) if variable.dtype == tf.bfloat16 else wire
        sent = hvd.broadcast(wire, root_rank=0, name=f"broadcast.{name}")
        if variable.dtype == tf.bool:
            sent = tf.cast(sent, tf.bool)
        elif variable.dtype == tf.bfloat16:
            sent = tf.bitcast(sent, tf.bfloat16)
        variable.assign(sent)
