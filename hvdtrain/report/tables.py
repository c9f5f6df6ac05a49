"""The tables of the report as HTML: facts of one run, and several runs side by side. All text is escaped here."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hvdtrain.config import TrainConfig
from hvdtrain.plain_files import printable
from hvdtrain.report.reading import Curve, RunData, finite, is_better_when_low, numbers_of
from hvdtrain.wording import duration, rate, short, size

#: One cell is at most so long; a longer text has no place on a page.
_MAX_TEXT = 120

#: Checkpoints that are listed by name.
_LISTED_CHECKPOINTS = 12


@dataclass(frozen=True)
class Compared:
    """One line of results side by side.

    Attributes:
        is_low_better: Whether less is better; ``None`` where neither is.
        value_of: Takes the value out of a run.
        shown: Writes it.
    """

    name: str
    is_low_better: bool | None
    value_of: Callable[[RunData], float | None]
    shown: Callable[[float], str]


def escaped(text: object) -> str:
    """Return any text as HTML that shows it and does nothing."""
    return html.escape(printable(text, _MAX_TEXT))


def facts_table(caption: str, rows: Sequence[tuple[str, object]]) -> str:
    """Return a card with a table of names and values; nothing for no rows."""
    if not rows:
        return ""
    body = "".join(f"<tr><th scope=row>{escaped(name)}</th><td>{escaped(value)}</td></tr>" for name, value in rows)
    return f'<div class="card"><table><caption>{escaped(caption)}</caption><tbody>{body}</tbody></table></div>'


def ledger_table(run: RunData) -> str:
    """Return what the ledger counted: how often each sample was used."""
    rows = []
    for name, counts in run.mapping("ledger").items():
        if isinstance(counts, dict):
            told = ", ".join(f"{key} {short(counts.get(key))}" for key in ("once", "more", "never"))
            rows.append((f"{'last epoch of training' if name == 'train' else 'evaluation'}", told))
    return facts_table("Ledger: how often each sample was used", rows)


def checkpoints_table(run: RunData) -> str:
    """Return the newest checkpoints with their sizes."""
    rows: list[tuple[str, object]] = [(name, size(num_bytes)) for name, num_bytes in run.checkpoints]
    left_out = len(rows) - _LISTED_CHECKPOINTS
    rows = rows[-_LISTED_CHECKPOINTS:][::-1]
    if left_out > 0:
        rows.append(("older ones", f"{left_out:,}"))
    return facts_table("Checkpoints", rows)


def config_tables(run: RunData) -> str:
    """Return the settings that differ from their defaults, and below them all of them."""
    defaults = {name: _told(field.default) for name, field in TrainConfig.model_fields.items()}
    told: list[tuple[str, object]] = [(str(name), _told(value)) for name, value in run.config.items()]
    changed = [(name, value) for name, value in told if value != defaults.get(name)]
    table = facts_table("Settings that differ from their defaults", changed)
    every = facts_table("All settings", told)
    return f"{table}<details><summary>All {len(told)} settings</summary>{every}</details>" if told else ""


def comparison_table(runs: Sequence[RunData]) -> str:
    """Return the results of several runs side by side; the best of each row is marked by a star."""
    rows = []
    for line in _compared(runs):
        values = [line.value_of(run) for run in runs]
        known = {value for value in values if value is not None}
        told = ["n/a" if value is None else line.shown(value) for value in values]
        differ = len({line.shown(value) for value in known}) > 1  # to a reader; rounding makes no run the best
        best = (min if line.is_low_better else max)(known) if line.is_low_better is not None and differ else None
        if known:
            rows.append(_row(line.name, told, [best is not None and value == best for value in values]))
    return _side_by_side("Results", runs, rows)


def differences_table(runs: Sequence[RunData]) -> str:
    """Return the settings and versions in which runs differ, side by side."""
    rows = []
    for kind in ("config", "versions"):
        names = dict.fromkeys(name for run in runs for name in getattr(run, kind))
        for name in names:
            values = [_told(getattr(run, kind)[name]) if name in getattr(run, kind) else "n/a" for run in runs]
            if len(set(values)) > 1:
                rows.append(_row(name, values))
    return _side_by_side("Settings and versions that differ", runs, rows)


def split_bars(run: RunData) -> str:
    """Return how long each part of a step takes, with a bar for each; nothing where the run did not record it."""
    parts = numbers_of(run.mapping("split"))
    total, longest = sum(parts.values()) or 1.0, max(parts.values(), default=0.0) or 1.0
    lines = [
        f'<li><div class="told"><span>{escaped(name)}</span>'
        f"<span>{escaped(short(value))} ms, {100 * value / total:.0f} %</span></div>"
        f'<div class="bar" style="width: {100 * value / longest:.1f}%"></div></li>'
        for name, value in parts.items()
    ]
    return f'<ul class="parts">{"".join(lines)}</ul>' if lines else ""


def splits_table(runs: Sequence[RunData]) -> str:
    """Return how long each part of a step takes in each run."""
    splits = [numbers_of(run.mapping("split")) for run in runs]
    rows = [
        _row(name, ["n/a" if name not in parts else short(parts[name]) for parts in splits])
        for name in dict.fromkeys(name for parts in splits for name in parts)
    ]
    return _side_by_side("Where a step goes, in milliseconds", runs, rows)


def last_known(curve: Curve | None) -> float | None:
    """Return the last finite number of a curve."""
    return next((value for value in reversed(curve.values) if finite(value) is not None), None) if curve else None


def best_known(name: str, curve: Curve | None) -> float | None:
    """Return the best number of a metric: the least loss, the greatest of anything else."""
    known = [value for value in curve.values if finite(value) is not None] if curve else []
    return (min if is_better_when_low(name) else max)(known, default=None)


def _compared(runs: Sequence[RunData]) -> list[Compared]:
    rows: list[Compared] = [Compared("training loss", True, training_loss, short)]
    for name in dict.fromkeys(name for run in runs for name in run.curves["eval"]):
        low = is_better_when_low(name)
        rows.append(Compared(f"{name}, last evaluation", low, partial(_last_evaluation, name), short))
        rows.append(Compared(f"{name}, best evaluation", low, partial(_best_evaluation, name), short))
    return [
        *rows,
        Compared("samples/s", False, lambda run: run.number("samples_per_s"), rate),
        Compared("time", None, run_seconds, duration),
        Compared("memory of a rank", True, most_memory, size),
        Compared("ranks", None, lambda run: run.number("size"), whole),
        Compared("steps", None, lambda run: run.place.get("global_step"), whole),
        Compared("samples seen", None, lambda run: run.place.get("samples_seen"), whole),
    ]


def _last_evaluation(name: str, run: RunData) -> float | None:
    return last_known(run.curves["eval"].get(name))


def _best_evaluation(name: str, run: RunData) -> float | None:
    return best_known(name, run.curves["eval"].get(name))


def training_loss(run: RunData) -> float | None:
    """Return the mean loss of the last epoch; of the last row while a run goes on."""
    loss = run.number("train", "loss")
    return last_known(run.curves["train"].get("loss")) if loss is None else loss


def run_seconds(run: RunData) -> float | None:
    """Return how long a run has trained."""
    seconds = run.number("time_s")
    return run.place.get("time_s") if seconds is None else seconds


def most_memory(run: RunData) -> float | None:
    """Return the most bytes that a rank has held at once."""
    return max(filter(None, (finite(entry.get("memory_bytes")) for entry in run.ranks)), default=None)


def whole(value: float) -> str:
    """Return a count that was read as a number, in full up to a hundred million."""
    return f"{value:,.0f}" if value < 1e8 else rate(value)


def _row(name: object, texts: Sequence[object], is_best: Sequence[bool] | None = None) -> str:
    cells = "".join(
        f'<td class="best">★ {escaped(text)}</td>' if best else f"<td>{escaped(text)}</td>"
        for text, best in zip(texts, is_best or [False] * len(texts), strict=True)
    )
    return f"<tr><th scope=row>{escaped(name)}</th>{cells}</tr>"


def _side_by_side(caption: str, runs: Sequence[RunData], rows: Sequence[str]) -> str:
    if not rows:
        return ""
    heads = "".join(f"<th scope=col>{escaped(run.label)}</th>" for run in runs)
    return (
        f'<div class="card scroll" tabindex="0" role="region" aria-label="{escaped(caption)}"><table class="compared">'
        f"<caption>{escaped(caption)}</caption><thead><tr><td></td>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _told(value: object) -> str:
    """Return a setting as one types it; None is a setting that was not given."""
    if value is None:
        return "not given"
    if isinstance(value, Mapping | list | tuple | bool):
        return json.dumps(value)
    return printable(value, _MAX_TEXT)
