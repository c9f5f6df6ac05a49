"""A run folder as the report sees it. A stranger may have made it: nothing in it is believed to be well formed.

What cannot be read is left out; the page says what is there. A run that is still going on can be read too.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdtrain import checkpoint
from hvdtrain.errors import CheckpointError, ConfigError
from hvdtrain.plain_files import open_plain, printable, read_json

_MAX_BYTES = 1 << 20

#: A page with more curves than this has no reader.
_MAX_METRICS = 24

#: Of these a row tells where it stands; everything else in it is a curve.
_PLACES = {"event", "epoch", "global_step", "samples_seen", "time_s"}

#: Beyond this a number is an accident of its run, and pictures of it overflow.
_LARGEST = 1e30


@dataclass
class Curve:
    """One number of a run against samples seen, both of the same length, oldest first."""

    samples: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass
class RunData:
    """What a run folder holds, every text printable and every number finite.

    Attributes:
        label: Name of the folder, unlike that of any other run of the page.
        summary: ``summary.json``; empty while the run has not finished.
        config: ``config.json``.
        curves: Curves of ``train`` and of ``eval`` rows by name.
        versions: Versions by package, from the newest checkpoint.
        notes: What keeps the run from being equal to another one.
        checkpoints: Names and bytes of the checkpoints, oldest first.
        seconds: Time of the last row since training began, ``None`` without any.
    """

    label: str
    path: Path
    summary: dict[str, Any]
    config: dict[str, Any]
    curves: dict[str, dict[str, Curve]]
    versions: dict[str, str]
    notes: list[str]
    checkpoints: list[tuple[str, int]]
    place: dict[str, float]

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended in good order."""
        return bool(self.summary)

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """What the summary tells of each rank; nothing while the run has not finished."""
        told = self.summary.get("ranks")
        return [entry for entry in told if isinstance(entry, dict)] if isinstance(told, list) else []

    def number(self, *names: str) -> float | None:
        """Return a number of the summary, such as ``number("train", "loss")``; ``None`` where there is none."""
        value: Any = self.summary
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return finite(value)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return a dictionary of the summary, empty where there is none."""
        value = self.summary.get(name)
        return value if isinstance(value, dict) else {}


def read_runs(paths: Sequence[Path]) -> list[RunData]:
    """Read run folders; runs of one name get a number.

    Raises:
        ConfigError: A folder holds neither metrics nor a configuration.
    """
    runs = [read_run(path) for path in paths]
    labels = [run.label for run in runs]
    for index, run in enumerate(runs):
        if labels.count(run.label) > 1:
            run.label += f" ({labels[: index + 1].count(labels[index])})"
    return runs


def read_run(path: Path) -> RunData:
    """Read one run folder.

    Raises:
        ConfigError: It holds neither metrics nor a configuration.
    """
    config, summary = (_read_dictionary(path / name) for name in ("config.json", "summary.json"))
    rows = path / "metrics.jsonl"
    try:
        curves, place = _read_curves(rows)
    except OSError as error:
        if not config:
            raise ConfigError(
                f"report: {path} must be the folder of a run, got {error}. Name the folder that --run-dir named."
            ) from error
        curves, place = {"train": {}, "eval": {}}, {}
    manifest, checkpoints = _read_checkpoints(path / "checkpoints")
    versions = {printable(name, 40): printable(text, 60) for name, text in manifest.get("versions", {}).items()}
    notes = [printable(note) for note in manifest.get("notes", [])]
    label = printable(path.resolve().name, 40)
    return RunData(label, path, summary, config, curves, versions, notes, checkpoints, place)


def finite(value: object) -> float | None:
    """Return a number that can be drawn, ``None`` for anything else; true is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with suppress(OverflowError):
        number = float(value)
        return number if math.isfinite(number) and abs(number) <= _LARGEST else None
    return None


def numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a dictionary, their names fit to print, none of them negative."""
    found = {printable(name, 40): finite(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None and value >= 0}


def is_better_when_low(name: str) -> bool:
    """Return whether a metric is a loss, as :mod:`hvdtrain.saving` decides it for ``keep_best``."""
    return name == "loss" or name.endswith("_loss")


def _read_dictionary(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path, max_bytes=_MAX_BYTES)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _read_curves(path: Path) -> tuple[dict[str, dict[str, Curve]], dict[str, float]]:
    """Return the curves of both kinds of rows by name, and where the last row stands."""
    curves: dict[str, dict[str, Curve]] = {"train": {}, "eval": {}}
    place: dict[str, float] = {}
    for row in _rows(path):
        samples = finite(row.get("samples_seen"))
        kind = row.get("event")
        if samples is None or kind not in ("train", "eval"):
            continue
        for name, value in row.items():
            number = finite(value)
            if name in _PLACES and number is not None:
                place[name] = number
            elif name not in _PLACES and (number is not None or value is None):
                _add_point(curves[kind], printable(name, 40), samples, math.nan if number is None else number)
    return curves, place


def _add_point(curves: dict[str, Curve], name: str, samples: float, value: float) -> None:
    if name not in curves and len(curves) >= _MAX_METRICS:
        return
    curve = curves.setdefault(name, Curve())
    curve.samples.append(samples)
    curve.values.append(value)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows that are whole; a kill cuts the last one, a power cut leaves zeros."""
    with open_plain(path) as stream:
        for line in iter(lambda: stream.readline(_MAX_BYTES), b""):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                yield row


def _read_checkpoints(folder: Path) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    """Return the newest manifest that can be read, and name and bytes of all checkpoints."""
    manifest: dict[str, Any] = {}
    found: list[tuple[str, int]] = []
    try:
        paths = checkpoint.list_checkpoints(folder)
    except (OSError, CheckpointError):
        return {}, []
    for path in reversed(paths):
        with suppress(OSError, CheckpointError):
            manifest = manifest or checkpoint.read_manifest(path)
    for path in paths:
        with suppress(OSError):
            found.append((path.name, sum(part.lstat().st_size for part in path.iterdir())))
    return manifest, found
