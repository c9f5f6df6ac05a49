"""How Keras computes what the job wrote: in which precision, and not compiled by XLA.

Parameters, gradients, optimizer slots and names of tensors stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from hvdtrain.errors import AdapterError, ConfigError


@contextmanager
def layers_computing_in(precision: str) -> Iterator[None]:
    """Let layers that are made in the body compute in ``precision``, but those that the job gives a dtype of their own.

    A layer takes its policy when it is made, and one that the job gave a dtype cannot be told from others later.
    """
    before = keras.config.dtype_policy()
    if precision == "bf16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def require_precision(precision: str, model: keras.Model) -> None:
    """Refuse a model that was made where the precision was not known.

    Raises:
        ConfigError: No layer computes in bfloat16.
    """
    computing = {layer.compute_dtype for layer in model._flatten_layers()}
    if precision == "bf16" and "bfloat16" not in computing:
        raise ConfigError(
            f"prepare: precision='bf16' must be known where layers are made, got a model whose layers all compute in "
            f"{' or '.join(sorted(map(str, computing)))}. Pass the function that makes the model, model=build_model, "
            "or make its layers with dtype='mixed_bfloat16'."
        )


def refuse_compile(compiles: bool) -> None:
    """Refuse the setting ``compile``, whose counterpart here would be XLA (``jit_compile=True``).

    XLA compiles for every number of samples anew, and the GPT of 3.3 M parameters took 0.99 of its time with it.

    Raises:
        AdapterError: It is set.
    """
    if compiles:
        raise AdapterError(
            "prepare: compile must be False in TensorFlow, got True. Its functions are graphs already; XLA makes them "
            "no faster and compiles anew for each number of samples. Leave it out, or give --no-compile."
        )


def widened(values: Any) -> Any:
    """Return values that are summed, or what a model gives to a loss: in float32 at least."""
    narrow = (tf.bfloat16, tf.float16)
    return tf.nest.map_structure(
        lambda value: tf.cast(value, tf.float32) if getattr(value, "dtype", None) in narrow else value, values
    )


def refuse_narrow(variables: Mapping[str, keras.Variable]) -> None:
    """Refuse parameters whose gradients Horovod 0.28.1 cannot reduce.

    Raises:
        AdapterError: Names the first one.
    """
    for name, variable in variables.items():
        if variable.trainable and variable.value.dtype in (tf.bfloat16, tf.complex64, tf.complex128):
            raise AdapterError(
                f"prepare: Horovod reduces no {variable.value.dtype.name} gradients, got that of {name!r}. Keep "
                "parameters in float32; precision='bf16' computes in bfloat16 on top of them."
            )
