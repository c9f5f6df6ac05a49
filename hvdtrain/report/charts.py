"""Pictures for the report, as SVG that takes its colours from the page, so that one picture serves dark and light.

Every series has a dash, a marker or a hatch of its own beside its colour. Text stays text.
"""

from __future__ import annotations

import html
import io
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from hvdtrain.report.reading import Curve
from hvdtrain.wording import rate, short

#: Colours that matplotlib is given, and what the page calls them; the page decides how they look.
_INK, _MUTED, _GRID, _HATCH = "#a10001", "#a10002", "#a10003", "#a10004"
_SERIES = ("#b10001", "#b10002", "#b10003", "#b10004", "#b10005", "#b10006")
_VARIABLES = {
    **{_INK: "--ink", _MUTED: "--muted", _GRID: "--grid", _HATCH: "--hatch"},
    **{colour: f"--series-{number}" for number, colour in enumerate(_SERIES, start=1)},
}
#: Lengths of dash and gap in widths of the line; none is a line without gaps.
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.2, 1.6), (6, 2, 1.5, 2), (3, 1.5), (9, 3))
_LINE_WIDTH = 1.8
_MARKERS = ("o", "s", "^", "D", "v", "P")
#: The same marks in the legend, in a box of 34 by 10.
_MARKS = (
    "M14 5a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",
    "M14 2h6v6h-6z",
    "M17 1.5l3.5 6h-7z",
    "M17 1l4 4l-4 4l-4-4z",
    "M17 8.5l3.5-6h-7z",
    "M16 2h2v2h2v2h-2v2h-2v-2h-2v-2h2z",
)

#: Points of a curve that a picture can show; longer ones become means with a band from least to most.
_MAX_POINTS = 240
#: A curve with so few points shows each of them.
_MARKED_POINTS = 40
#: Ranks that can have a bar each.
_MAX_BARS = 128
#: Values that span more than this are drawn on a logarithmic axis.
_WIDE_RATIO = 30.0

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 11.0,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.formatter.useoffset": False,
    "xtick.color": _GRID,
    "ytick.color": _GRID,
    "xtick.labelcolor": _MUTED,
    "ytick.labelcolor": _MUTED,
    "ytick.major.size": 0.0,
    "ytick.minor.size": 0.0,
    "text.color": _INK,
    "hatch.linewidth": 1.4,
    "hatch.color": _HATCH,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
}


@dataclass(frozen=True)
class Series:
    """One line of a picture.

    Attributes:
        label: What the legend calls it.
        style: Number of its colour, dash and marker, from 0.
    """

    label: str
    curve: Curve
    style: int = 0


def plain(value: float) -> str:
    """Return a number of an axis, large ones in thousands and millions."""
    return rate(value) if abs(value) >= 10_000 else f"{value:.6g}"


def draw_curves(
    name: str,
    series: Sequence[Series],
    *,
    in_words: Callable[[float], str] = plain,
    starts_at_zero: bool = False,
    is_wide: bool = False,
) -> str:
    """Return curves against samples seen as HTML: one picture, or one for screens and one for phones; none for nothing.

    Args:
        name: What is drawn, told to those who cannot see it.
        series: The lines; empty ones are left out.
        in_words: How a number of the axis is written.
        starts_at_zero: Whether the axis must show zero, as it must where lengths are compared.
        is_wide: Whether the picture takes two columns where there is room.
    """
    drawn = [one for one in series if any(map(math.isfinite, one.curve.values))]
    if not drawn:
        return ""
    told = f"{name} against samples seen. " + " ".join(_told(one) for one in drawn)
    shapes = {"wide": (772, 250), "narrow": (360, 250)} if is_wide else {"any": (360, 250)}
    pictures = "".join(
        _picture(f"{name}-{kind}", told, shape, kind, lambda axes: _draw_curves(axes, drawn, in_words, starts_at_zero))
        for kind, shape in shapes.items()
    )
    return (_legend(drawn) if len(series) > 1 else "") + pictures


def _legend(series: Sequence[Series]) -> str:
    """Return what each line stands for; as HTML, because a picture cannot tell how wide a text becomes."""
    keys = []
    for one in series:
        dashes = " ".join(f"{part * _LINE_WIDTH:g}" for part in _DASHES[one.style % len(_DASHES)]) or "none"
        colour = f"var({_VARIABLES[_SERIES[one.style % len(_SERIES)]]})"
        mark = _MARKS[one.style % len(_MARKS)] if len(one.curve.samples) <= _MARKED_POINTS else ""
        keys.append(
            '<li><svg viewBox="0 0 34 10" class="key" aria-hidden="true">'
            f'<path d="M0 5H34" style="stroke: {colour}; stroke-width: 2; stroke-dasharray: {dashes}"/>'
            f'<path d="{mark}" style="fill: {colour}"/></svg>{html.escape(one.label)}</li>'
        )
    return f'<ul class="legend">{"".join(keys)}</ul>'


def draw_ranks(name: str, values: Sequence[float], in_words: Callable[[float], str]) -> str:
    """Return one bar per rank, the one with the most marked in words.

    Args:
        name: What is drawn, told to those who cannot see it.
        values: One number per rank.
        in_words: How a number is written, with its unit.
    """
    most = int(np.argmax(values))
    median = float(np.median(values))
    told = f"{name} by rank: median {in_words(median)}, most {in_words(values[most])} on rank {most}."

    def draw(axes: Axes) -> None:
        if len(values) <= _MAX_BARS:
            bars = axes.bar(range(len(values)), values, color=_SERIES[0], width=0.8, alpha=0.85)
            bars[most].set(facecolor=_SERIES[1], hatch="////", alpha=1.0)
        else:
            axes.fill_between(range(len(values)), values, color=_SERIES[0], step="mid", linewidth=0, alpha=0.85)
        axes.axhline(median, color=_INK, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.set_title(
            f"most: rank {most}, {in_words(values[most])}; dashed: median {in_words(median)}",
            loc="left",
            fontsize=10.5,
            color=_MUTED,
        )
        axes.set_xlabel("rank")
        axes.yaxis.set_major_formatter(lambda value, _: in_words(value))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))

    return _picture(name, told, (360, 250), "any", draw)


def _draw_curves(axes: Axes, series: Sequence[Series], told: Callable[[float], str], starts_at_zero: bool) -> None:
    for one in series:
        _draw_line(axes, one)
    values = np.concatenate([np.asarray(one.curve.values) for one in series])
    values = values[np.isfinite(values)]
    axes.set_xlabel("samples seen")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.margins(x=0.02)
    if starts_at_zero:
        axes.set_ylim(bottom=0.0)
    elif values.min() > 0 and values.max() / values.min() > _WIDE_RATIO:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(lambda value, _: told(value))


def _draw_line(axes: Axes, one: Series) -> None:
    samples, values = np.asarray(one.curve.samples), np.asarray(one.curve.values)
    colour, dashes = _SERIES[one.style % len(_SERIES)], _DASHES[one.style % len(_DASHES)]
    is_marked = len(samples) <= _MARKED_POINTS
    if len(samples) > _MAX_POINTS:
        samples, values, least, most = _thin(samples, values)
        axes.fill_between(samples, least, most, color=colour, alpha=0.2, linewidth=0)
    axes.plot(
        samples,
        values,
        color=colour,
        linestyle=(0, dashes) if dashes else "-",
        linewidth=_LINE_WIDTH,
        marker=_MARKERS[one.style % len(_MARKERS)] if is_marked else "",
        markersize=3.5,
    )


def _thin(samples: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Return middle sample, mean, least and most of each of ``_MAX_POINTS`` runs of points."""
    bounds = np.linspace(0, len(samples), _MAX_POINTS + 1).astype(int)
    points = []
    for start, stop in itertools.pairwise(bounds):
        known = values[start:stop][np.isfinite(values[start:stop])]
        told = (known.mean(), known.min(), known.max()) if len(known) else (math.nan,) * 3
        points.append((samples[start:stop].mean(), *told))
    return tuple(np.array(points).T)


def _told(one: Series) -> str:
    known = [value for value in one.curve.values if math.isfinite(value)]
    ends = f"from {short(known[0])} to {short(known[-1])}"
    return f"{one.label}: {ends}, least {short(min(known))}, most {short(max(known))}."


def _picture(name: str, told: str, shape: tuple[int, int], kind: str, draw: Callable[[Axes], None]) -> str:
    width, height = shape
    # Names of parts inside a picture come from this, and all pictures share one page.
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        draw(figure.subplots())
        stream = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :].replace("*{stroke-linejoin: round; stroke-linecap: butt}", "")
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # the same in every picture, and a page wants each once
    svg = re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" class="{kind}" role="img">', svg, count=1)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.replace('role="img">', f'role="img" aria-label="{html.escape(told)}">', 1)
