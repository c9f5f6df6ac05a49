"""How far a run that was disturbed is from the one that was not: by bits, or by the tolerances of parity."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hvdtrain.checkpoint import find_latest
from hvdtrain.compare import WEIGHT_FACTOR, compare_runs, relative
from hvdtrain.errors import HvdTrainError
from hvdtrain.finished_run import Run
from hvdtrain.portable import PortableState

#: Of a loss, relative to itself; tensors may differ by ten times that of their norm.
RTOL = 1e-5
#: What the small job's ledger must say.
LEDGER = {
    "train": {"once": 26, "more": 0, "never": 0},
    "eval": {"once": 11, "more": 0, "never": 0},
}
_CLOCK = ("time_s", "samples_per_s", "session", "split", "ranks")
_COUNTERS = ("epoch", "global_step", "samples_seen")


@dataclass(frozen=True)
class Difference:
    """How two runs differ.

    Attributes:
        fault: The first thing that may not differ and does; ``None`` when the runs are the same.
        loss: Largest difference of a loss, relative.
        tensors: Largest difference of a weight or slot, relative to the tensor's norm.
    """

    fault: str | None
    loss: float = 0.0
    tensors: float = 0.0


def compare_bits(expected: Path, found: Path, *, ignore: str = "") -> Difference:
    """Compare runs of one framework and size: every row, the summary, and all bits of weights and slots.

    Args:
        expected: The run folder that is right.
        found: The one that should be the same.
        ignore: A number of the rows that may differ.
    """
    try:
        rows, summaries, tensors = (
            [read(folder) for folder in (expected, found)] for read in (_rows, _told_at_end, _tensors)
        )
    except (HvdTrainError, OSError, ValueError) as error:
        return Difference(f"{found} cannot be read: {error}")
    if summaries[0] != summaries[1]:
        return Difference(f"summary {summaries[1]}, expected {summaries[0]}")
    rows = [[{name: value for name, value in row.items() if name != ignore} for row in part] for part in rows]
    if rows[0] != rows[1]:
        wrong = [pair for pair in zip(*rows, strict=False) if pair[0] != pair[1]]
        return Difference(f"{len(rows[1])} rows, expected {len(rows[0])}; first that differ: {wrong[:1]}")
    bits = [{name: array.tobytes() for name, array in held.items()} for held in tensors]
    differing = [name for name in sorted({*bits[0], *bits[1]}) if bits[0].get(name) != bits[1].get(name)]
    return Difference(f"other bits in {', '.join(differing)}" if differing else _ledger_fault(found))


def compare_numbers(expected: Path, found: Path) -> Difference:
    """Compare runs of any framework and size: losses, metrics, weights and slots within the tolerances of parity."""
    try:
        runs = Run.read(expected), Run.read(found)
        result = compare_runs(*runs, rtol=RTOL)
        slots = [_state(folder).slots for folder in (expected, found)]
        evals = [[row for row in _rows(folder) if row["event"] == "eval"] for folder in (expected, found)]
        counted = [{name: _summary(folder)[name] for name in _COUNTERS} for folder in (expected, found)]
    except (HvdTrainError, OSError, ValueError) as error:
        return Difference(f"{found} cannot be read or compared: {error}")
    distances = {name: distance(array, slots[1].get(name)) for name, array in slots[0].items()}
    losses = [relative(a["loss"], b["loss"], 0.0) for a, b in zip(*evals, strict=False)]
    worst = max(distances, key=lambda name: distances[name])
    loss, tensors = max(result.loss, *losses), max(result.weights, distances[worst])
    faults = [
        result.first_fault,
        counted[0] != counted[1] and f"counters {counted[1]}, expected {counted[0]}",
        len(runs[0].rows) != len(runs[1].rows) and f"{len(runs[1].rows)} rows, expected {len(runs[0].rows)}",
        len(evals[0]) != len(evals[1]) and f"{len(evals[1])} evaluations, expected {len(evals[0])}",
        loss > RTOL and f"a loss differs by {loss:.2e}",
        distances[worst] > WEIGHT_FACTOR * RTOL and f"slot {worst} differs by {distances[worst]:.2e} of its norm",
        _ledger_fault(found),
    ]
    return Difference(next((fault for fault in faults if fault), None), loss, tensors)


def distance(a: np.ndarray, b: np.ndarray | None) -> float:
    """Return ``|a - b|`` relative to ``|a|``; infinite where there is no ``b``."""
    if b is None or a.shape != b.shape:
        return np.inf
    x, y = a.astype(np.float64), b.astype(np.float64)
    norm = float(np.linalg.norm(x))
    return float(np.linalg.norm(x - y)) / (norm or 1.0)


def _ledger_fault(folder: Path) -> str | None:
    ledger = _summary(folder)["ledger"]
    return None if ledger == LEDGER else f"ledger {ledger}, expected {LEDGER}"


def _summary(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def _told_at_end(folder: Path) -> dict[str, Any]:
    return _without_clock(_summary(folder))


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [_without_clock(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _without_clock(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in _CLOCK}


def _state(folder: Path) -> PortableState:
    found = find_latest(folder / "checkpoints")
    if found is None:
        raise ValueError("there is no checkpoint")
    return found.state


def _tensors(folder: Path) -> dict[str, np.ndarray]:
    state = _state(folder)
    return {**{f"weight {n}": a for n, a in state.weights.items()}, **{f"slot {n}": a for n, a in state.slots.items()}}
