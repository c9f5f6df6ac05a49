"""A picture of a forecast."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hvdtrain.bench_picture import draw_throughput
from hvdtrain.forecast.outlook import Outlook, Row


def draw_plan(outlook: Outlook, rows: Sequence[Row], path: Path) -> None:
    """Write a PNG: throughput beside perfect scaling, the parts of a step, and memory against samples per pass."""
    figure = Figure(figsize=(14, 4.5), layout="constrained")
    throughput, parts, memory = figure.subplots(1, 3)
    sizes = [row.setup.num_ranks for row in rows]
    names = [str(size) for size in sizes]
    draw_throughput(throughput, sizes, [row.samples_per_s for row in rows], "expected")
    compute, sent = [1e3 * row.compute for row in rows], [1e3 * row.exposed for row in rows]
    parts.bar(names, compute, hatch="//", edgecolor="white", label="compute")
    parts.bar(names, sent, bottom=compute, hatch="xx", edgecolor="white", label="communication")
    parts.set_xlabel("ranks")
    parts.set_ylabel("ms per step")
    parts.set_ylim(top=1.25e3 * max(row.step for row in rows))  # room for the legend
    parts.legend()
    _draw_memory(memory, outlook)
    figure.savefig(path, dpi=110)


def _draw_memory(axes: Axes, outlook: Outlook) -> None:
    batches = sorted({run.request.batch_size for run in outlook.runs})
    mib = float(2**20)
    line, ends = outlook.memory_line(1), (0, 1.2 * batches[-1])
    axes.plot(ends, [line.at(end) / mib for end in ends], "-", label="line")
    axes.plot(
        [run.request.batch_size for run in outlook.runs],
        [run.memory_bytes / mib for run in outlook.runs],
        "o",
        color="black",
        label="dry runs",
    )
    if outlook.limit is not None and outlook.limit < 3 * line.at(ends[1]):
        axes.axhline(outlook.limit / mib, linestyle="--", color="black", label="limit")
    axes.set_xlabel("samples per pass")
    axes.set_ylabel("MiB of one rank alone")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right")
