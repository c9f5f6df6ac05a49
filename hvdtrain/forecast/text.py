"""A forecast in words: what one replica holds, a row per number of ranks, learning rates, and what follows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from hvdtrain.forecast.memory import memory_parts
from hvdtrain.forecast.outlook import Outlook, Row
from hvdtrain.scaling_advice import ScalingAdvice, scaling_advice
from hvdtrain.wording import counted, rate, short, size, table


def replica_lines(outlook: Outlook, rows: Sequence[Row]) -> list[str]:
    """Return what a rank of the most ranks holds, and what connects it with the others."""
    model, setup = outlook.runs[0].model, rows[-1].setup
    samples, ranks = setup.request().batch_size, setup.num_ranks
    parts = memory_parts(model, outlook.memory_line(ranks), samples, outlook.reduction_bytes(ranks))
    told = [
        ("parameters", f"{model.num_parameters:,} in {counted(model.num_tensors, 'tensor')}"),
        ("weights", size(parts.weights)),
        ("gradients", f"{size(parts.gradients)}, and {size(parts.reduction)} to sum them (Horovod's fusion buffer)"),
        ("optimizer", f"{size(parts.slots)} ({outlook.config.optimizer})"),
        ("activations", f"{size(parts.activations)} for {counted(samples, 'sample')} per pass (measured)"),
        ("other memory", f"{size(parts.others)} of interpreter, libraries, data and buffers (measured)"),
        *([("network", _network(outlook))] if outlook.network is not None else []),
    ]
    return table(told)


def _network(outlook: Outlook) -> str:
    network = outlook.network
    assert network is not None
    latency_us = round(1e6 * network.latency_s)
    speed = f"{8e-9 * network.bandwidth:.3g} Gbit/s, {f'{latency_us:,}' if latency_us else 'below 1'} us a message"
    return f"{speed} ({'measured with Horovod, two ranks of this machine' if network.is_measured else 'given'})"


def scale_table(rows: Sequence[Row]) -> Table:
    """Return a row per number of ranks."""
    found = Table("ranks", "batch\nper rank", "memory\nof a rank", "compute\nms", "sum\nms", "step\nms")
    found.add_column("samples\nper s")
    found.add_column("efficiency\nstrong / weak")
    for row in rows:
        request = row.setup.request()
        found.add_row(
            f"{row.setup.num_ranks}{'' if row.is_measured else ' *'}",
            f"{request.passes} x {request.batch_size}",
            size(row.memory) + ("" if row.fits else " (!)"),
            f"{1e3 * row.compute:.2f}",
            f"{1e3 * row.exposed:.2f} ({1e3 * row.overlapped:.2f})",
            f"{1e3 * row.step:.2f}",
            rate(row.samples_per_s),
            f"{row.efficiency(rows[0]):.0%} / {row.weak_efficiency:.0%}",
        )
    return found


def advice_table(outlook: Outlook, rows: Sequence[Row]) -> RenderableType:
    """Return what each scaling rule asks for, at this global batch and at one that grows with the ranks."""
    config, first, last = outlook.config, rows[0].setup, rows[-1].setup
    here = first.sizes.global_batch_size
    base = config.base_batch_size or here
    grown = max(here * last.num_ranks // first.num_ranks, last.sizes.global_batch_size)
    if grown == here:
        grown = 2 * here
    found = Table("learning rate", f"batch of\n{here:,}", f"batch of\n{grown:,}", "\nand there")
    found.add_column("warm-up,\nepochs")
    found.add_column("\nsource")
    for now, later in zip(scaling_advice(config, base, here), scaling_advice(config, base, grown), strict=True):
        warm_up = f"{short(later.warmup_epochs)}{' (!)' if later.is_warmup_missing else ''}"
        chosen = " <" if now.rule == config.lr_scaling else ""
        source = later.source.partition(",")[0]
        rates = [short(now.learning_rate), short(later.learning_rate)]
        found.add_row(f"{now.rule}{chosen}", *rates, _moved(now, later), warm_up, source)
    return found


def _moved(now: ScalingAdvice, later: ScalingAdvice) -> str:
    """Return what else a rule changes."""
    parts = []
    if later.momentum is not None and later.momentum != now.momentum:
        parts.append(f"momentum {short(later.momentum)}")
    if later.betas is not None and later.betas != now.betas:
        parts.append(f"betas {short(later.betas[0])} {short(later.betas[1])}")
    return ", ".join(parts)


def verdict_lines(outlook: Outlook, rows: Sequence[Row]) -> list[str]:
    """Return what follows, one thing a line."""
    return [*_memory_verdicts(outlook, rows), _paying(outlook, rows), *_sharding(outlook, rows), *_legend(rows)]


def _memory_verdicts(outlook: Outlook, rows: Sequence[Row]) -> list[str]:
    if outlook.limit is None:
        return []
    told, limit = [], size(outlook.limit)
    for row in rows:
        fit, ranks = row.fit, counted(row.setup.num_ranks, "rank")
        assert fit is not None
        if not fit.batch_size:
            told.append(f"{ranks}: does not fit into {limit}, not even one sample per pass")
        elif not row.fits:
            advice = f"--batch-size {fit.batch_size} --backward-passes-per-step {fit.passes}"
            told.append(f"{ranks}: does not fit into {limit}; give {advice}")
    if not told:
        largest = rows[0].fit and rows[0].fit.largest
        room = "any number of samples" if largest == float("inf") else f"up to {counted(int(largest or 0), 'sample')}"
        return [f"fits into {limit}, with {room} per pass"]
    return told


def _paying(outlook: Outlook, rows: Sequence[Row]) -> str:
    last = outlook.last_worthwhile(rows[0])
    if last is None:
        return "data parallelism alone pays until each rank has a single sample: more than half of its time is training"
    return (
        f"data parallelism alone pays up to about {counted(last, 'rank')}: on twice as many, more than half of the "
        "ranks' time is lost; a larger global batch moves that"
    )


def _sharding(outlook: Outlook, rows: Sequence[Row]) -> list[str]:
    if rows[-1].setup.num_ranks == 1 or not outlook.runs[0].model.slots:
        return []
    saved, ranks = size(rows[-1].sharding_saves), counted(rows[-1].setup.num_ranks, "rank")
    return [f"sharding the optimizer's state (ZeRO, stage 1; not built here) would save {saved} a rank on {ranks}"]


def _legend(rows: Sequence[Row]) -> list[str]:
    told = [
        "batch: passes x samples per pass. sum: of the gradients over ranks, in brackets what would be left of it if "
        "it ran beside the backward pass. strong: the global batch stays; weak: the share of a rank stays. "
        "(!): more than there is; <: what these settings do"
    ]
    if not all(row.is_measured for row in rows):
        told.append("* no dry run was made for this many: on the line through the others")
    return told
