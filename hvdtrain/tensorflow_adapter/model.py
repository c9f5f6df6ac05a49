"""A Keras model as a loss sees it: bound to training or to evaluation, whatever the job writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from hvdtrain.metrics import require_elements
from hvdtrain.tensorflow_adapter.precision import widened


class BoundModel:
    """Calls a Keras layer in one mode; layers reached through it are bound to the same mode.

    PyTorch keeps the mode in the model, Keras takes it per call, so a loss that forgets ``training`` would
    evaluate with dropout or train without. The mode given here wins.
    """

    def __init__(self, layer: keras.Layer, *, training: bool) -> None:
        """Bind ``layer`` to a mode."""
        self._layer = layer
        self._training = training

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer in this mode; what it computes in bfloat16 comes back in float32, as losses expect it."""
        return widened(self._layer(*args, **{**kwargs, "training": self._training}))

    def __getattr__(self, name: str) -> Any:
        """Return the layer's attribute; a layer or a list of layers comes back bound."""
        return self._bind(getattr(self._layer, name))

    def _bind(self, value: Any) -> Any:
        if isinstance(value, keras.Layer):
            return BoundModel(value, training=self._training)
        if isinstance(value, list | tuple) and any(isinstance(part, keras.Layer) for part in value):
            return [self._bind(part) for part in value]
        return value


class Scope(keras.Layer):
    """A job's function run as the call of a layer, so that whatever it calls inherits the mode.

    Binding alone does not reach a layer that the job gets by ``model.get_layer`` or calls inside a method of its own.
    """

    def __init__(self, model: keras.Model, function: Callable[[Any, Any], Any]) -> None:
        """Keep ``function(model, batch)``."""
        super().__init__(autocast=False)
        self.model = model  # tracked, so that Keras clears its layer losses at each call
        self._function = function

    def build(self, *shapes: Any, **named_shapes: Any) -> None:
        """Build nothing: the job builds the model by calling what it needs of it."""
        self.built = True

    def call(self, batch: Any, training: bool = False) -> Any:
        """Return what the function makes of the model in this mode."""
        return self._function(BoundModel(self.model, training=training), batch)


def elements(value: Any, model: keras.Model | None = None) -> tuple[tf.Tensor, tf.Tensor]:
    """Return ``(values, weights)``; the layer losses of ``model`` are added to every element."""
    values, weights = value if isinstance(value, tuple) else (value, None)
    values = widened(tf.convert_to_tensor(values))
    weights = tf.ones_like(values) if weights is None else tf.cast(weights, values.dtype)
    extra = model.losses if model is not None else []
    return (values + tf.add_n([tf.cast(part, values.dtype) for part in extra]) if extra else values), weights


def require(where: str, value: Any, num_samples: int) -> None:
    """Refuse what a loss or metric returned unless it is one value per element."""
    parts = value if isinstance(value, tuple) else (value,)
    require_elements(where, [getattr(part, "shape", None) for part in parts], num_samples, 'reduction="none"')


def leading_open(tensor: tf.Tensor) -> tf.TensorSpec:
    """Return the form of a batch whose number of samples is left open, so that a short one needs no new trace."""
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)
