"""What other settings a larger or smaller global batch asks for, one row per rule of the literature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from hvdtrain.config import TrainConfig
from hvdtrain.errors import ConfigError

#: Epochs of warm-up that Goyal et al. needed for large batches.
_GOYAL_WARMUP_EPOCHS = 5.0

_GOYAL = "Goyal et al. 2017, arXiv:1706.02677"
_KRIZHEVSKY = "Krizhevsky 2014, arXiv:1404.5997"
_BUSBRIDGE = "Busbridge et al. 2023, arXiv:2307.13813; Smith and Le 2018, arXiv:1710.06451"
_MALLADI = "Malladi et al. 2022, arXiv:2205.10287"
_YOU = "You et al. 2019, arXiv:1901.08256; You et al. 2020, arXiv:1904.00962"


@dataclass(frozen=True)
class ScalingAdvice:
    """One rule applied to a change of the global batch.

    Attributes:
        rule: At most 24 characters.
        lr_scaling: The setting of ``TrainConfig.lr_scaling`` that gives the rate of a row which moves nothing else.
        learning_rate: Rate after warm-up.
        momentum: Of sgd; ``None`` where the optimizer has none.
        betas: Of adam, adamw and lamb; ``None`` where the optimizer has none, or the rule has none that are possible.
        epsilon: Of adam, adamw and lamb; ``None`` where the optimizer has none.
        warmup_epochs: Epochs of warm-up that the rule wants.
        is_warmup_missing: Whether the settings have less than that.
        source: Authors, year and arXiv number; empty where there is no rule.
        note: One short sentence; may be empty.
    """

    rule: str
    lr_scaling: Literal["none", "linear", "sqrt"]
    learning_rate: float
    momentum: float | None
    betas: tuple[float, float] | None
    epsilon: float | None
    warmup_epochs: float
    is_warmup_missing: bool
    source: str
    note: str = ""


def scaling_advice(config: TrainConfig, base_batch_size: int, global_batch_size: int) -> list[ScalingAdvice]:
    """Return what each rule makes of these settings at another global batch; the plain rules first.

    Rules are about runs of the same number of samples. With ``k`` = new over old global batch:

    - none: nothing moves.
    - linear: rate times k, with a warm-up of 5 epochs where k is above 1 (Goyal et al., for sgd).
    - sqrt: rate times the root of k, which keeps the variance of an update (Krizhevsky). For lamb, You et al. let
      the epochs of warm-up grow k-fold with it.
    - linear, momentum^k: sgd with momentum m. ``m^k`` forgets a sample after as many samples as ``m`` does
      (Busbridge et al., for any exponential mean), and the rate becomes ``k lr (1 - m^k) / (1 - m)``, so that a
      sample moves the weights as far in all, as ``lr / (1 - m)`` per sample is the step of Smith and Le.
    - sqrt, betas: adam and adamw. Rate times the root of k, ``beta' = 1 - k (1 - beta)``, ``epsilon / sqrt(k)``
      (Malladi et al.); it ends where a beta would fall below 0.

    Args:
        config: Settings at the old global batch.
        base_batch_size: Global batch that ``config.learning_rate`` is for, at least 1.
        global_batch_size: The new one, at least 1.

    Raises:
        ConfigError: A batch below 1.
    """
    if min(base_batch_size, global_batch_size) < 1:
        raise ConfigError(
            f"scaling advice: both batches must be at least 1, got {base_batch_size} and {global_batch_size}. "
            "Give the global batch of the settings, and the new one."
        )
    factor = global_batch_size / base_batch_size
    rows = [_plain(config, rule, factor) for rule in ("none", "linear", "sqrt")]
    if config.optimizer == "sgd" and config.momentum:
        rows.append(_with_momentum(config, factor))
    elif config.optimizer in ("adam", "adamw"):
        rows.append(_with_betas(config, factor, base_batch_size))
    return rows


def _plain(config: TrainConfig, rule: Literal["none", "linear", "sqrt"], factor: float) -> ScalingAdvice:
    grows = {"none": 1.0, "linear": factor, "sqrt": math.sqrt(factor)}[rule]
    warmup, source, note = config.warmup_epochs, "", ""
    if rule == "linear":
        warmup, source = _goyal_warmup(config, factor), _GOYAL
        note = "" if config.optimizer == "sgd" else "Made for sgd; adaptive optimizers follow the root more closely."
    elif rule == "sqrt":
        source = _KRIZHEVSKY
        if config.optimizer == "lamb":
            warmup, source, note = factor * warmup, _YOU, "Wants a warm-up whose epochs grow with the batch."
    elif factor > 1:
        note = "Fewer updates of the same size: expect slower progress per sample."
    return _row(config, rule, rule, grows * config.learning_rate, warmup, source, note)


def _with_momentum(config: TrainConfig, factor: float) -> ScalingAdvice:
    momentum = config.momentum**factor
    rate = factor * config.learning_rate * (1 - momentum) / (1 - config.momentum)
    note = "Keeps the reach of momentum in samples."
    warmup = _goyal_warmup(config, factor)
    return _row(config, "linear, momentum^k", "linear", rate, warmup, _BUSBRIDGE, note, momentum=momentum)


def _with_betas(config: TrainConfig, factor: float, base_batch_size: int) -> ScalingAdvice:
    first, second = (1 - factor * (1 - beta) for beta in config.betas)
    betas: tuple[float, float] | None = (first, second)
    note = "Keeps the reach of both means in samples."
    if min(first, second) < 0:
        limit = int(base_batch_size / (1 - min(config.betas)))
        betas, note = None, f"No betas: they would fall below 0 above a global batch of {limit:,}."
    rate, epsilon = math.sqrt(factor) * config.learning_rate, config.epsilon / math.sqrt(factor)
    return _row(config, "sqrt, betas", "sqrt", rate, config.warmup_epochs, _MALLADI, note, betas=betas, epsilon=epsilon)


def _goyal_warmup(config: TrainConfig, factor: float) -> float:
    return max(config.warmup_epochs, _GOYAL_WARMUP_EPOCHS) if factor > 1 else config.warmup_epochs


def _row(
    config: TrainConfig,
    rule: str,
    lr_scaling: Literal["none", "linear", "sqrt"],
    learning_rate: float,
    warmup_epochs: float,
    source: str,
    note: str,
    **moved: Any,
) -> ScalingAdvice:
    """Return a row in which ``momentum``, ``betas`` and ``epsilon`` are those of the settings where not moved."""
    names = ("momentum",) if config.optimizer == "sgd" else ("betas", "epsilon")
    held = {name: getattr(config, name) if name in names else None for name in ("momentum", "betas", "epsilon")}
    return ScalingAdvice(
        rule,
        lr_scaling,
        learning_rate,
        warmup_epochs=warmup_epochs,
        is_warmup_missing=config.warmup_epochs < warmup_epochs,
        source=source,
        note=note,
        **{**held, **moved},
    )
