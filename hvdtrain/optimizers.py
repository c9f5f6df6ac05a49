"""The canonical optimizers: one definition each, which both adapters follow to the last term.

Frameworks give one name to different formulas: Keras keeps the rate inside the momentum buffer and adds Adam's
epsilon before the bias correction is divided out, so they differ as soon as the rate moves. Here every optimizer
is a formula on one parameter in NumPy; PyTorch's formulas for the first three. ``t`` counts updates from 1.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdtrain.config import TrainConfig

Array = NDArray[np.floating[Any]]
Slots = MutableMapping[str, Array]


@dataclass(frozen=True)
class Definition:
    """One canonical optimizer.

    Attributes:
        name: Its name in ``TrainConfig.optimizer``.
        slots: Its slots per parameter, zero at the start, under PyTorch's names.
        update: ``update(config, parameter, gradient, slots, lr, t)`` returns the new parameter and replaces the
            slots; arrays are float64 or float32 of the parameter's shape.
    """

    name: str
    slots: tuple[str, ...]
    update: Callable[[TrainConfig, Array, Array, Slots, float, int], Array]


def define(config: TrainConfig) -> Definition:
    """Return the definition of ``config.optimizer``; ``sgd`` without momentum has no slot."""
    if config.optimizer == "sgd":
        return Definition("sgd", ("momentum_buffer",) if config.momentum else (), _sgd)
    update = {"adam": _adam, "adamw": _adamw, "lamb": _lamb}[config.optimizer]
    return Definition(config.optimizer, ("exp_avg", "exp_avg_sq"), update)


def _sgd(config: TrainConfig, w: Array, g: Array, slots: Slots, lr: float, t: int) -> Array:
    """Sutskever et al. 2013, with the rate outside the buffer, as ``torch.optim.SGD`` has it.

    ``g += wd w``; ``b = momentum b + g``; ``w -= lr b``, or ``w -= lr (g + momentum b)`` with Nesterov.
    """
    g = g + config.weight_decay * w
    if config.momentum:
        slots["momentum_buffer"] = config.momentum * slots["momentum_buffer"] + g
        g = g + config.momentum * slots["momentum_buffer"] if config.nesterov else slots["momentum_buffer"]
    return w - lr * g


def _adam(config: TrainConfig, w: Array, g: Array, slots: Slots, lr: float, t: int) -> Array:
    """Kingma and Ba 2015, arXiv:1412.6980, decay added to the gradient, as ``torch.optim.Adam`` has it.

    ``m = b1 m + (1 - b1) g``; ``v = b2 v + (1 - b2) g^2``;
    ``w -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)``.
    """
    first, second = _moments(config, g + config.weight_decay * w, slots, t)
    return w - lr * first / (np.sqrt(second) + config.epsilon)


def _adamw(config: TrainConfig, w: Array, g: Array, slots: Slots, lr: float, t: int) -> Array:
    """Loshchilov and Hutter 2019, arXiv:1711.05101: decay ``w -= lr wd w`` first, then Adam without decay."""
    w = w - lr * config.weight_decay * w
    first, second = _moments(config, g, slots, t)
    return w - lr * first / (np.sqrt(second) + config.epsilon)


def _lamb(config: TrainConfig, w: Array, g: Array, slots: Slots, lr: float, t: int) -> Array:
    """You et al. 2020, arXiv:1904.00962, algorithm 2, for large batches; norms are of the whole tensor.

    ``r = Adam's direction + wd w``; ``w -= lr |w| / |r| r``, with the ratio 1 where a norm is 0.
    """
    first, second = _moments(config, g, slots, t)
    r = first / (np.sqrt(second) + config.epsilon) + config.weight_decay * w
    weight_norm, r_norm = np.linalg.norm(w), np.linalg.norm(r)
    trust = weight_norm / r_norm if weight_norm > 0 and r_norm > 0 else 1.0
    return w - lr * trust * r


def _moments(config: TrainConfig, g: Array, slots: Slots, t: int) -> tuple[Array, Array]:
    b1, b2 = config.betas
    slots["exp_avg"] = b1 * slots["exp_avg"] + (1 - b1) * g
    slots["exp_avg_sq"] = b2 * slots["exp_avg_sq"] + (1 - b2) * g * g
    return slots["exp_avg"] / (1 - b1**t), slots["exp_avg_sq"] / (1 - b2**t)
