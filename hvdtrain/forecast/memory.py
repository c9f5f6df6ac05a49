"""Memory of a rank: what it holds in any case, what grows with its micro-batch, and what fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hvdtrain.forecast.line import Line
from hvdtrain.model_size import ModelSize
from hvdtrain.settings import FOR_HOROVOD_ON_CPU

_FUSION = "HOROVOD_FUSION_THRESHOLD"


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of one rank, in parts that add up to what was measured.

    Attributes:
        weights: Parameters and buffers.
        gradients: One per parameter.
        slots: Of the optimizer.
        reduction: What summing over ranks needs; nothing for one rank.
        activations: What grew with the micro-batch: activations, and whatever else a sample needs.
        others: Interpreter, libraries, data, and the copy that is saved.
    """

    weights: int
    gradients: int
    slots: int
    reduction: int
    activations: int
    others: int


def reduction_bytes(framework: str, num_ranks: int, sent: int, environ: Mapping[str, str]) -> int:
    """Return what summing over ranks needs beside the gradients themselves; a dry run of one rank sums nothing.

    Args:
        framework: PyTorch takes sums into the gradients' own memory, TensorFlow into new one.
        num_ranks: Of the run.
        sent: Bytes of the gradients as they are sent.
        environ: Horovod's fusion buffer holds as many bytes as ``HOROVOD_FUSION_THRESHOLD`` tells, at most.
    """
    if num_ranks == 1:
        return 0
    told = environ.get(_FUSION, "")
    buffer = min(sent, int(told if told.isdigit() else FOR_HOROVOD_ON_CPU[_FUSION]))
    return buffer + (sent if framework == "tensorflow" else 0)


def memory_parts(model: ModelSize, line: Line, batch_size: int, reduction: int) -> MemoryParts:
    """Divide the memory that ``line`` tells for ``batch_size`` samples per pass, ``reduction`` included."""
    activations = round(line.slope * batch_size)
    others = max(round(line.base) - model.held - reduction, 0)
    return MemoryParts(model.weights, model.gradients, model.slots, reduction, activations, others)


@dataclass(frozen=True)
class Fit:
    """How a rank's share can be cut so that it fits.

    Attributes:
        largest: Samples per pass that fit; 0 where not even one does, infinite where samples cost nothing.
        batch_size: Samples per pass to use, 0 where nothing fits.
        passes: Passes that a share then takes.
    """

    largest: float
    batch_size: int
    passes: int


def fit_batch(line: Line, limit: float, share: int, batch_size: int) -> Fit:
    """Return the fewest passes in which ``share`` samples fit below ``limit`` bytes, in equal parts.

    Args:
        line: Bytes of a rank by samples per pass.
        limit: Bytes that a rank has.
        share: Samples of a rank and update, at least 1.
        batch_size: What is planned, which is kept where it fits.

    Example:
        >>> fit_batch(Line(100.0, 2.0), 150.0, share=64, batch_size=64)  # 25 samples fit
        Fit(largest=25, batch_size=22, passes=3)
    """
    room = line.largest_below(limit)
    largest = room if math.isinf(room) else max(math.floor(room), 0)
    if largest < 1:
        return Fit(0, 0, 0)
    if batch_size <= largest:
        return Fit(largest, batch_size, -(-share // batch_size))
    passes = -(-share // int(largest))
    return Fit(largest, -(-share // passes), passes)


def sharding_saves(slots: int, num_ranks: int) -> int:
    """Return the bytes that a rank would save if each held one part of the optimizer's slots.

    Stage 1 of ZeRO: ``slots * (1 - 1 / N)`` (Rajbhandari et al. 2020, arXiv:1910.02054, section 5.1).
    """
    return slots - -(-slots // num_ranks)
