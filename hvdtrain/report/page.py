"""The page itself: one HTML file that needs nothing else, and in which no script runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hvdtrain
from hvdtrain.report import charts
from hvdtrain.report.charts import Series
from hvdtrain.report.reading import Curve, RunData, finite, numbers_of, read_runs
from hvdtrain.report.style import STYLE
from hvdtrain.report.tables import (
    best_known,
    checkpoints_table,
    comparison_table,
    config_tables,
    differences_table,
    escaped,
    facts_table,
    last_known,
    ledger_table,
    most_memory,
    run_seconds,
    split_bars,
    splits_table,
    training_loss,
    whole,
)
from hvdtrain.wording import counted, duration, rate, short, size

#: Nothing is loaded and nothing runs, whatever a run folder holds.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

#: Curves of training rows that have a title; any other one goes by its name.
_TITLES = {
    "learning_rate": ("Learning rate", ""),
    "grad_norm": ("Gradient norm", "before clipping"),
    "samples_per_s": ("Throughput", "samples per second"),
    "noise_scale": ("Gradient noise scale", "samples, about the largest useful batch"),
}


#: Numbers of the ranks that have a picture.
_MAX_RANK_CHARTS = 6


def write_report(paths: Sequence[Path], out: Path) -> None:
    """Write one page about the runs in these folders.

    Args:
        paths: Run folders, finished or not.
        out: The HTML file; replaced whole when it is there.

    Raises:
        ConfigError: A folder holds no run.
        OSError: The page cannot be written.
    """
    text = render(read_runs(paths))
    unfinished = out.with_name(f".{out.name}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(out)


def render(runs: Sequence[RunData]) -> str:
    """Return the page as text."""
    body = _one_run(runs[0]) if len(runs) == 1 else _several_runs(runs)
    title = escaped(runs[0].label if len(runs) == 1 else f"{len(runs)} runs compared")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{title}</title>\n<link rel="icon" href="data:,">\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n'
        f"{body}\n<footer>Written by hvdtrain {escaped(hvdtrain.__version__)}. "
        "This file needs no network and runs no script.</footer>\n</main>\n</body>\n</html>\n"
    )


def _one_run(run: RunData) -> str:
    facts = [str(run.summary.get("framework") or run.versions.get("framework") or "")]
    if run.number("size") is not None:
        facts.append(counted(int(run.number("size") or 0), "rank"))
    if run.place:
        facts.append(counted(int(run.place.get("epoch", 0)), "epoch"))
    notes = [("Not equal to runs elsewhere", ", ".join(run.notes))] if run.notes else []
    tables = [
        config_tables(run),
        ledger_table(run),
        facts_table("Versions", list(run.versions.items())),
        checkpoints_table(run),
        facts_table("Notes", notes),
    ]
    return (
        f'<header><h1>{escaped(run.label)}</h1><p class="muted">{escaped(" · ".join(filter(None, facts)))}</p>'
        f'<div class="chips">{_chips(run)}</div></header>'
        f'<div class="tiles">{_tiles(run)}</div>'
        f'<div class="charts">{_charts([run])}</div>'
        f'<h2>Behind it</h2><div class="columns"><div>{tables[0]}</div><div>{"".join(tables[1:])}</div></div>'
    )


def _several_runs(runs: Sequence[RunData]) -> str:
    chips = "".join(
        _chip(
            f"{run.label}: finished" if run.is_finished else f"{run.label}: not finished",
            "good" if run.is_finished else "warn",
        )
        for run in runs
    )
    return (
        f'<header><h1>{len(runs)} runs compared</h1><p class="muted">Curves stand against samples seen, '
        f'which is the same scale whatever the ranks. ★ marks the best.</p><div class="chips">{chips}</div></header>'
        f"{comparison_table(runs)}"
        f'<div class="charts">{_charts(runs)}</div>'
        f"{splits_table(runs)}"
        f"<h2>What differs</h2>{differences_table(runs) or '<p>No setting and no version.</p>'}"
    )


def _chips(run: RunData) -> str:
    chips = [_chip("finished", "good") if run.is_finished else _chip("not finished", "warn")]
    counts = run.mapping("ledger").get("train")
    if isinstance(counts, dict) and finite(counts.get("once")) is not None:
        is_exact = counts.get("more") == 0 and counts.get("never") == 0
        chips.append(
            _chip("every sample used once per epoch", "good")
            if is_exact
            else _chip("last epoch was cut short, or samples were not used once", "warn")
        )
    chips += [_chip(note, "warn") for note in run.notes]
    return "".join(chips)


def _chip(text: str, kind: str = "") -> str:
    return f'<span class="chip {kind}">{escaped(text)}</span>'


def _tiles(run: RunData) -> str:
    tiles = [_tile("training loss", training_loss(run), short, "last epoch" if run.is_finished else "last row")]
    for name, curve in list(run.curves["eval"].items())[:4]:
        best = best_known(name, curve)
        more = "" if best is None else f"best {short(best)}"
        tiles.append(_tile(f"evaluation {name}", last_known(curve), short, more))
    throughput = run.number("samples_per_s")
    if throughput is None:
        throughput = last_known(run.curves["train"].get("samples_per_s"))
    steps = run.place.get("global_step")
    tiles.append(_tile("throughput", throughput, rate, "samples/s"))
    tiles.append(_tile("samples seen", run.place.get("samples_seen"), whole, f"{whole(steps)} steps" if steps else ""))
    tiles.append(_tile("time", run_seconds(run), duration, "h:min:s" if (run_seconds(run) or 0) >= 3600 else "min:s"))
    tiles.append(_tile("memory of a rank", most_memory(run), size, "at most, shared libraries included"))
    return "".join(tiles)


def _tile(name: str, value: float | None, shown: Any, more: str) -> str:
    told = "n/a" if value is None else shown(value)
    return (
        f'<div class="card tile"><div class="name">{escaped(name)}</div>'
        f'<div class="value">{escaped(told)}</div><div class="more">{escaped(more)}</div></div>'
    )


def _charts(runs: Sequence[RunData]) -> str:
    """Return every picture that the runs have something for, each in its card."""
    cards = _loss_charts(runs)
    for name in dict.fromkeys(name for run in runs for name in run.curves["eval"] if name != "loss"):
        cards.append(_card(_capital(name), "evaluation", _overlaid(name, "eval", name, runs)))
    for name in dict.fromkeys(name for run in runs for name in run.curves["train"] if name != "loss"):
        title, more = _TITLES.get(name, _title(name))
        in_words = size if name.endswith("_bytes") else charts.plain
        from_zero = name in ("samples_per_s", "learning_rate")
        picture = _overlaid(title, "train", name, runs, in_words=in_words, starts_at_zero=from_zero)
        cards.append(_card(title, more, picture))
    if len(runs) == 1:
        cards.append(_card("Where a step goes", "mean of all steps", split_bars(runs[0])))
        cards += _rank_charts(runs[0])
    return "".join(cards)


def _loss_charts(runs: Sequence[RunData]) -> list[str]:
    if len(runs) > 1:
        pictures = [
            _overlaid(f"{kind} loss", kind, "loss", runs, is_wide=kind == "train") for kind in ("train", "eval")
        ]
        return [
            _card("Training loss", "mean since the row before", pictures[0], is_wide=True),
            _card("Evaluation loss", "", pictures[1]),
        ]
    both = [("training", runs[0].curves["train"].get("loss")), ("evaluation", runs[0].curves["eval"].get("loss"))]
    series = [Series(label, curve, style) for style, (label, curve) in enumerate(both) if curve is not None]
    return [_card("Loss", "", charts.draw_curves("Loss", series, is_wide=True), is_wide=True)]


def _overlaid(title: str, kind: str, name: str, runs: Sequence[RunData], **how: Any) -> str:
    series = [Series(run.label, run.curves[kind].get(name, Curve()), style) for style, run in enumerate(runs)]
    return charts.draw_curves(title, series, **how)


def _rank_charts(run: RunData) -> list[str]:
    """Return one picture per number that the summary holds for every rank, such as milliseconds of waiting."""
    cards = []
    for name in list(numbers_of(run.ranks[0]))[:_MAX_RANK_CHARTS] if len(run.ranks) > 1 else []:
        values = [finite(entry.get(name)) for entry in run.ranks]
        known = [value for value in values if value is not None]
        if len(known) == len(values) and name not in ("rank", "local_rank"):
            title, unit = _title(name)
            cards.append(_card(f"{title} by rank", unit, charts.draw_ranks(title, known, _with_unit(unit))))
    return cards


def _card(title: str, more: str, picture: str, *, is_wide: bool = False) -> str:
    if not picture:
        return ""
    note = f" <small>{escaped(more)}</small>" if more else ""
    return f'<section class="card{" two" if is_wide else ""}"><h3>{escaped(title)}{note}</h3>{picture}</section>'


def _with_unit(unit: str) -> Callable[[float], str]:
    return size if unit == "bytes" else lambda value: f"{short(value)} {unit}".rstrip()


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:].replace("_", " ")


def _title(name: str) -> tuple[str, str]:
    """Return what a number is called and its unit, which stands at the end of all names of this package."""
    stem, _, unit = name.rpartition("_")
    return (_capital(stem), unit) if stem and unit in ("ms", "s", "bytes") else (_capital(name), "")
