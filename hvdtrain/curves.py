"""Pictures of loss curves for comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from hvdtrain.compare import FLOOR_RATIO, Comparison, relative
from hvdtrain.finished_run import Run


def draw_comparisons(comparisons: Sequence[Comparison], path: Path) -> None:
    """Write a PNG: the losses of all runs, and the relative difference of each pair, against samples seen."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    losses, differences = figure.subplots(2, 1, sharex=True)
    runs: dict[Path, Run] = {run.path: run for pair in comparisons for run in (pair.a, pair.b)}
    for style, run in zip(("-", "--", "-.", ":") * len(runs), runs.values(), strict=False):
        values = [math.nan if row["loss"] is None else row["loss"] for row in run.rows.values()]
        losses.plot(list(run.rows), values, style, label=run.name)
    losses.set_ylabel("loss")
    losses.legend()
    for pair in comparisons:
        shared = sorted(set(pair.a.rows) & set(pair.b.rows))
        floor = FLOOR_RATIO * abs(pair.a.rows[shared[0]]["loss"] or 0.0)
        parts = [relative(pair.a.rows[seen]["loss"], pair.b.rows[seen]["loss"], floor) for seen in shared]
        differences.plot(shared, [max(part, 1e-12) for part in parts], label=f"{pair.a.name} and {pair.b.name}")
    differences.axhline(comparisons[0].rtol, color="black", linewidth=0.8, linestyle=":")
    differences.set_yscale("log")
    differences.set_ylabel("relative difference of the loss")
    differences.set_xlabel("samples seen")
    differences.legend()
    figure.savefig(path, dpi=110)
