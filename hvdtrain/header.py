"""What a run is, on one screen before its first step, and what it came to, behind its last one."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvdtrain.batching import BatchSizes
from hvdtrain.config import TrainConfig
from hvdtrain.model_size import ModelSize, model_size
from hvdtrain.plan import RunPlan
from hvdtrain.schedule import scaled_learning_rate
from hvdtrain.terminal import columns
from hvdtrain.topology import Topology
from hvdtrain.versions import installed_versions
from hvdtrain.wording import counted, duration, rate, short, size, table

if TYPE_CHECKING:
    from hvdtrain.trainer import Trainer


def header_lines(trainer: Trainer) -> list[str]:
    """Return the lines that stand before the first step, each as wide as the terminal at most, or 100 columns."""
    config, plan, topology = trainer.config, trainer._plan, trainer.topology
    versions, width = installed_versions(trainer.framework), columns(sys.stderr)
    model = model_size(trainer._signature.tensors)
    names = [name for name in versions if name not in ("hvdtrain", "python")]
    told = ", ".join(f"{name} {versions[name]}" for name in [*names, "python"])
    rows = [
        ("ranks", _ranks(topology)),
        ("data", _data(plan)),
        ("global batch", _global_batch(plan.sizes, topology.size)),
        ("parameters", f"{model.num_parameters:,} in {counted(model.num_tensors, 'tensor')}"),
        ("steps", _steps(plan, trainer.counters.global_step)),
        ("learning rate", _learning_rate(config, plan)),
        ("memory", _memory(model)),
        ("run folder", _tail(str(trainer.run_dir), width) if trainer.run_dir else "none, nothing is written"),
    ]
    title = textwrap.wrap(f"hvdtrain {versions['hvdtrain']} with {told}", width, subsequent_indent="  ")
    return [*title, *table(rows, width)]


def closing_lines(summary: Mapping[str, Any], trainer: Trainer) -> list[str]:
    """Return the lines that stand behind the last step, each as wide as the terminal at most.

    Throughput leaves out evaluations, saves, and the first step of each session.
    """
    ledger = (summary["ledger"] or {}).get("train")
    session, width = summary["session"], columns(sys.stderr)
    throughput, time = f"{rate(session['samples_per_s'])} samples/s", duration(session["time_s"])
    if session["steps"] < summary["global_step"]:  # the run was continued
        throughput += f" in this session, {rate(summary['samples_per_s'])} in the whole run"
        time += f" in this session, {duration(summary['time_s'])} in the whole run"
    rows = [
        ("steps", f"{summary['global_step']:,}, {counted(summary['samples_seen'], 'sample')} seen"),
        ("train", _values(summary["train"])),
        *([("evaluation", _values(summary["eval"]))] if summary["eval"] else []),
        *(_noise_scale(summary, trainer._plan.sizes.global_batch_size) if "noise_scale" in summary else []),
        ("throughput", throughput),
        ("time", time),
        ("memory", _peak_memory(summary["ranks"])),
        *([("last epoch", _ledger(ledger))] if ledger else []),
        *([("run folder", _tail(str(trainer.run_dir), width))] if trainer.run_dir else []),
    ]
    title = f"done: {summary['framework']} on {counted(summary['size'], 'rank')}"
    return [title, *table(rows, width)]


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


def _memory(model: ModelSize) -> str:
    """Return what is certain; ``hvdtrain plan`` measures the rest."""
    return f"{size(model.held)} per rank for weights, gradients and optimizer; activations not counted"


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


def _peak_memory(ranks: Sequence[Mapping[str, Any]]) -> str:
    largest = max(ranks, key=lambda entry: float(entry["memory_bytes"]))
    place = f", on rank {largest['rank']}" if len(ranks) > 1 else ""
    return f"at most {size(largest['memory_bytes'])}{place}"


def _noise_scale(summary: Mapping[str, Any], global_batch_size: int) -> list[tuple[str, str]]:
    """Return the estimate, and what doubling this global batch would be worth; see :mod:`hvdtrain.noise_scale`."""
    if summary["noise_scale"] is None:
        return [("noise scale", "not known yet, the gradient cannot be told from its noise")]
    useful = counted(summary["largest_useful_batch"], "sample")
    saved, added = (f"{summary[name]:.0%}" for name in ("doubling_saves_steps", "doubling_adds_samples"))
    return [
        ("noise scale", f"{short(float(summary['noise_scale']))}, the largest useful batch is about {useful}"),
        ("next batch", f"twice {global_batch_size:,} would save about {saved} of the steps for {added} more samples"),
    ]


def _ledger(counts: Mapping[str, Any]) -> str:
    once, more, never = (short(counts[name]) for name in ("once", "more", "never"))
    return f"samples used once {once}, more often {more}, never {never}"


def _tail(path: str, width: int) -> str:
    """Return the end of a long path, which tells more than its beginning, beside the names of a table."""
    limit = width - 20
    return path if len(path) <= limit else f"...{path[3 - limit :]}"
