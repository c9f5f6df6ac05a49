"""What a run is, on one screen before its first step, and what it came to, behind its last one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdtrain.batching import BatchSizes
from hvdtrain.config import TrainConfig
from hvdtrain.plan import RunPlan
from hvdtrain.schedule import scaled_learning_rate
from hvdtrain.topology import Topology
from hvdtrain.versions import installed_versions
from hvdtrain.wording import counted, duration, rate, short, size, table

if TYPE_CHECKING:
    from hvdtrain.trainer import Trainer

#: Tensors of batch norm that no gradient moves, by the last part of their neutral name.
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

_BYTES_OF_OTHER_TYPES = {"bfloat16": 2}


def header_lines(trainer: Trainer) -> list[str]:
    """Return the lines that stand before the first step, each at most 100 characters long."""
    config, plan, topology = trainer.config, trainer._plan, trainer.topology
    versions = installed_versions(trainer.framework)
    names = [name for name in versions if name not in ("hvdtrain", "python")]
    told = ", ".join(f"{name} {versions[name]}" for name in [*names, "python"])
    rows = [
        ("ranks", _ranks(topology)),
        ("data", _data(plan)),
        ("global batch", _global_batch(plan.sizes, topology.size)),
        ("parameters", _parameters(trainer._signature.tensors)),
        ("steps", _steps(plan, trainer.counters.global_step)),
        ("learning rate", _learning_rate(config, plan)),
        ("memory", _memory(trainer._signature.tensors)),
        ("run folder", _tail(str(trainer.run_dir)) if trainer.run_dir else "none, nothing is written"),
    ]
    return [f"hvdtrain {versions['hvdtrain']} with {told}", *table(rows)]


def closing_lines(summary: Mapping[str, Any], trainer: Trainer) -> list[str]:
    """Return the lines that stand behind the last step."""
    ledger = (summary["ledger"] or {}).get("train")
    rows = [
        ("steps", f"{summary['global_step']:,}, {counted(summary['samples_seen'], 'sample')} seen"),
        ("train", _values(summary["train"])),
        *([("evaluation", _values(summary["eval"]))] if summary["eval"] else []),
        ("throughput", f"{rate(summary['samples_per_s'])} samples/s"),
        ("time", duration(summary["time_s"])),
        *([("last epoch", _ledger(ledger))] if ledger else []),
        *([("run folder", _tail(str(trainer.run_dir)))] if trainer.run_dir else []),
    ]
    return [f"done: {summary['framework']} on {counted(summary['size'], 'rank')}", *table(rows)]


def _ranks(topology: Topology) -> str:
    return f"{topology.size:,} on {counted(topology.cross_size, 'host')}"


def _data(plan: RunPlan) -> str:
    train = "a stream" if plan.num_samples is None else f"{counted(plan.num_samples, 'sample')} per epoch"
    return train + ("" if plan.num_eval_samples is None else f", {plan.num_eval_samples:,} for evaluation")


def _global_batch(sizes: BatchSizes, num_ranks: int) -> str:
    """Return the batch arithmetic; where the product is larger than the batch, shares are not all full."""
    passes = sizes.backward_passes_per_step
    is_exact = num_ranks * sizes.batch_size * passes == sizes.global_batch_size
    per_rank = f"{'' if is_exact else 'at most '}{sizes.batch_size:,} per rank and pass"
    ranks = counted(num_ranks, "rank")
    return f"{sizes.global_batch_size:,} = {ranks} x {per_rank} x {counted(passes, 'pass')}"


def _parameters(tensors: Mapping[str, tuple[tuple[int, ...], str]]) -> str:
    shapes = [shape for name, (shape, _) in tensors.items() if _is_parameter(name)]
    return f"{sum(math.prod(shape) for shape in shapes):,} in {counted(len(shapes), 'tensor')}"


def _memory(tensors: Mapping[str, tuple[tuple[int, ...], str]]) -> str:
    """Return what is certain: the tensors of the model and its optimizer, and one gradient per parameter."""
    held = sum(_num_bytes(told) for told in tensors.values())
    gradients = sum(_num_bytes(told) for name, told in tensors.items() if _is_parameter(name))
    return f"{size(held + gradients)} per rank for weights, gradients and optimizer; activations not counted"


def _steps(plan: RunPlan, done: int) -> str:
    if plan.total_steps is None:
        return "until the stream ends" + (f", {done:,} done" if done else "")
    text = f"{plan.total_steps:,}"
    if plan.steps_per_epoch is not None and plan.epochs is not None:
        text += f" in {counted(plan.epochs, 'epoch')} of {plan.steps_per_epoch:,}"
    return text + (f", {done:,} done" if done else "")


def _learning_rate(config: TrainConfig, plan: RunPlan) -> str:
    peak = scaled_learning_rate(config, plan.sizes.global_batch_size)
    parts = [f"{config.optimizer} at {short(peak)}"]
    if config.lr_scaling != "none":
        parts[0] += f" ({config.lr_scaling} scaling of {short(config.learning_rate)} at {config.base_batch_size:,})"
    if config.warmup_epochs:
        parts.append(f"warm-up until epoch {short(config.warmup_epochs)}")
    span = "" if config.decay_epochs is None else f" by epoch {short(config.decay_epochs)}"
    drop = f"{short(config.decay_factor)} times the rate"
    parts.append(
        {
            "constant": "then constant" if config.warmup_epochs else "constant",
            "step": f"{drop} every {short(config.decay_epochs)} epochs",
            "plateau": f"{drop} after {counted(config.plateau_patience, 'evaluation')} without gain",
        }.get(config.decay, f"{config.decay} to {short(config.final_learning_rate)}{span}")
    )
    return ", ".join(parts)


def _values(means: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {short(value)}" for name, value in (means or {}).items()) or "n/a"


def _ledger(counts: Mapping[str, Any]) -> str:
    once, more, never = (short(counts[name]) for name in ("once", "more", "never"))
    return f"samples used once {once}, more often {more}, never {never}"


def _is_parameter(name: str) -> bool:
    return "/" not in name and name.rsplit(".", 1)[-1] not in _STATISTICS


def _num_bytes(told: tuple[tuple[int, ...], str]) -> int:
    shape, dtype = told
    return math.prod(shape) * (_BYTES_OF_OTHER_TYPES.get(dtype) or np.dtype(dtype).itemsize)


def _tail(path: str, limit: int = 80) -> str:
    """Return the end of a long path, which tells more than its beginning."""
    return path if len(path) <= limit else f"...{path[3 - limit :]}"
