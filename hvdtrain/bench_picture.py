"""A picture of what the bench measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from hvdtrain.bench import Scale

_HATCHES = ("", "//", "..", "xx", "\\\\", "oo")


def draw_bench(scales: Sequence[Scale], path: Path) -> None:
    """Write a PNG: throughput beside perfect scaling, and the parts of a step, against the number of ranks."""
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    throughput, parts = figure.subplots(1, 2)
    sizes = [scale.size for scale in scales]
    first = scales[0].samples_per_s / scales[0].size
    throughput.plot(sizes, [scale.samples_per_s for scale in scales], "o-", label="measured")
    throughput.plot(sizes, [first * size for size in sizes], ":", color="black", label="perfect")
    throughput.set_xlabel("ranks")
    throughput.set_ylabel("samples per second")
    throughput.set_xticks(sizes)
    throughput.set_ylim(bottom=0)
    throughput.legend()
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
