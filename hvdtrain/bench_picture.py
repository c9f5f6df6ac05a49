"""A picture of what the bench measured, and of throughput for all who draw it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hvdtrain.bench import Scale

_HATCHES = ("", "//", "..", "xx", "\\\\", "oo")


def draw_bench(scales: Sequence[Scale], path: Path) -> None:
    """Write a PNG: throughput beside perfect scaling, and the parts of a step, against the number of ranks."""
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    throughput, parts = figure.subplots(1, 2)
    sizes = [scale.size for scale in scales]
    draw_throughput(throughput, sizes, [scale.samples_per_s for scale in scales], "measured")
    bottom = np.zeros(len(scales))
    names = [str(size) for size in sizes]
    for hatch, part in zip(_HATCHES, scales[0].split, strict=True):
        heights = np.array([scale.split[part] for scale in scales])
        parts.bar(names, heights, bottom=bottom, hatch=hatch, edgecolor="white", label=part)
        bottom += heights
    parts.set_xlabel("ranks")
    parts.set_ylabel("ms per step")
    parts.legend()
    figure.savefig(path, dpi=110)


def draw_throughput(axes: Axes, sizes: Sequence[int], samples_per_s: Sequence[float], label: str) -> None:
    """Draw throughput against the number of ranks, beside that of perfect scaling from the fewest."""
    first = samples_per_s[0] / sizes[0]
    axes.plot(sizes, samples_per_s, "o-", label=label)
    axes.plot(sizes, [first * size for size in sizes], ":", color="black", label="perfect")
    axes.set_xlabel("ranks")
    axes.set_ylabel("samples per second")
    axes.set_xticks(sizes)
    axes.set_ylim(bottom=0)
    axes.legend()
