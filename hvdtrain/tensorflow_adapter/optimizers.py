"""The canonical optimizers in Keras; Keras's own compute other numbers as soon as the rate moves."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from hvdtrain.config import TrainConfig
from hvdtrain.optimizers import define


class Canonical(keras.optimizers.Optimizer):
    """One of the formulas of :mod:`hvdtrain.optimizers`, chosen by ``settings``.

    Slots carry PyTorch's names. Scalars of the formula are computed in float64, as PyTorch does, and rounded once.
    """

    def __init__(self, learning_rate: Any = 0.01, settings: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Keep ``settings``, the fields of TrainConfig that the formula reads."""
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.settings = settings or {}
        self.definition = define(TrainConfig(**self.settings))
        self.slots: dict[str, list[keras.Variable]] = {}

    def build(self, variables: list[keras.Variable]) -> None:
        """Make the zero slots of ``variables``."""
        if self.built:
            return
        super().build(variables)
        for name in self.definition.slots:
            self.slots[name] = [self.add_variable_from_reference(v, name=name) for v in variables]

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Update one variable; Keras calls this for each, with the TensorFlow variable inside its own."""
        slots = {name: made[self._get_variable_index(variable)].value for name, made in self.slots.items()}
        update = {"sgd": self._sgd, "adam": self._adam, "adamw": self._adamw, "lamb": self._lamb}
        update[self.definition.name](gradient, variable, slots, tf.cast(learning_rate, tf.float64))

    @property
    def is_elementwise(self) -> bool:
        """Whether an element's update depends on that element alone, so that compiling it changes no sum's order."""
        return self.definition.name != "lamb"

    def get_config(self) -> dict[str, Any]:
        """Return what ``from_config`` rebuilds this optimizer from; Horovod does so when it wraps."""
        return {**super().get_config(), "settings": self.settings}

    def _sgd(self, g: tf.Tensor, w: tf.Variable, slots: dict[str, tf.Variable], lr: tf.Tensor) -> None:
        s = self.settings
        if s["weight_decay"]:
            g = g + s["weight_decay"] * w
        if s["momentum"]:
            buffer = slots["momentum_buffer"]
            buffer.assign(s["momentum"] * buffer + g)
            g = g + s["momentum"] * buffer if s["nesterov"] else buffer
        w.assign_sub(tf.cast(lr, w.dtype) * g)

    def _adam(self, g: tf.Tensor, w: tf.Variable, slots: dict[str, tf.Variable], lr: tf.Tensor) -> None:
        if self.settings["weight_decay"]:
            g = g + self.settings["weight_decay"] * w
        step_size, direction = self._direction(g, slots, lr)
        w.assign_sub(step_size * direction)

    def _adamw(self, g: tf.Tensor, w: tf.Variable, slots: dict[str, tf.Variable], lr: tf.Tensor) -> None:
        if self.settings["weight_decay"]:
            w.assign(w * tf.cast(1 - lr * self.settings["weight_decay"], w.dtype))
        step_size, direction = self._direction(g, slots, lr)
        w.assign_sub(step_size * direction)

    def _lamb(self, g: tf.Tensor, w: tf.Variable, slots: dict[str, tf.Variable], lr: tf.Tensor) -> None:
        correction, direction = self._direction(g, slots, tf.ones((), tf.float64))
        r = correction * direction + self.settings["weight_decay"] * w
        weight_norm, r_norm = tf.norm(w), tf.norm(r)
        trust = tf.where((weight_norm > 0) & (r_norm > 0), weight_norm / r_norm, tf.ones_like(r_norm))
        w.assign_sub(tf.cast(lr, w.dtype) * trust * r)

    def _direction(self, g: tf.Tensor, slots: dict[str, tf.Variable], lr: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Update Adam's means; return ``lr / (1 - b1^t)`` and ``m / (sqrt(v) / sqrt(1 - b2^t) + eps)``."""
        b1, b2 = self.settings["betas"]
        first, second = slots["exp_avg"], slots["exp_avg_sq"]
        count = tf.cast(self.iterations.value, tf.float64) + 1
        first.assign_add((g - first) * (1 - b1))
        second.assign(b2 * second + (1 - b2) * g * g)
        root = tf.cast(tf.sqrt(1 - tf.pow(tf.constant(b2, tf.float64), count)), g.dtype)
        step_size = tf.cast(lr / (1 - tf.pow(tf.constant(b1, tf.float64), count)), g.dtype)
        return step_size, first / (tf.sqrt(second) / root + self.settings["epsilon"])


def build_optimizer(config: TrainConfig) -> Canonical:
    """Return the canonical optimizer of ``config``; slots follow in ``build``."""
    names = ("optimizer", "weight_decay", "momentum", "nesterov", "betas", "epsilon")
    return Canonical(config.learning_rate, settings={name: getattr(config, name) for name in names})
