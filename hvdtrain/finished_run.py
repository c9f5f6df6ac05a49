"""A finished run as a comparison reads it: rows, traces, and the weights of every checkpoint that is left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from hvdtrain import checkpoint
from hvdtrain.errors import CheckpointError, ConfigError
from hvdtrain.plain_files import open_plain, printable, read_json
from hvdtrain.trace import TracedStep, read_trace

#: A summary is a few kilobytes.
_MAX_SUMMARY_BYTES = 1 << 20

#: Ends the names of tensors that PyTorch alone writes.
ONE_SIDED = "num_batches_tracked"


@dataclass(frozen=True)
class Run:
    """What a finished run left behind, as far as a comparison needs it.

    Attributes:
        rows: Rows of training metrics by samples seen.
        weights: Final weights by neutral name.
        notes: What the run cannot promise, by the adapter's own words.
        samples_seen: Samples seen at the end.
        began_from: Fingerprint of the weights that it began from; empty where it recorded none.
    """

    path: Path
    framework: str
    size: int
    rows: Mapping[int, Mapping[str, Any]]
    weights: Mapping[str, NDArray[Any]]
    trace: Mapping[int, TracedStep]
    notes: tuple[str, ...]
    samples_seen: int = 0
    began_from: str = ""

    @property
    def name(self) -> str:
        """Return a short name, such as ``torch x 2``."""
        return f"{self.framework} x {self.size}"

    @classmethod
    def read(cls, path: Path) -> Run:
        """Read a run folder.

        Raises:
            ConfigError: The folder holds no finished run.
        """
        try:
            return cls._read(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, CheckpointError) as error:
            reason = printable(error if isinstance(error, OSError | ValueError | CheckpointError) else repr(error))
            raise ConfigError(f"compare: {path} must be the folder of a finished run, got {reason}.") from error

    @classmethod
    def _read(cls, path: Path) -> Run:
        summary = read_json(path / "summary.json", max_bytes=_MAX_SUMMARY_BYTES)
        with open_plain(path / "metrics.jsonl") as stream:
            rows = [row for row in map(json.loads, stream) if row["event"] == "train"]
        final = checkpoint.find_latest(path / "checkpoints")
        if final is None:
            raise ValueError("no checkpoint in it")
        by_samples = {int(row["samples_seen"]): row for row in rows}
        return cls(
            path,
            str(summary["framework"]),
            int(summary["size"]),
            by_samples,
            _compared_weights(final),
            read_trace(path),
            tuple(map(str, final.manifest["notes"])),
            _samples_seen(final.manifest, max(by_samples, default=0)),
            str(final.manifest.get("began_from", "")),
        )

    def weights_at(self, samples_seen: int) -> Mapping[str, NDArray[Any]] | None:
        """Return the weights after so many samples, ``None`` where the run has saved none that can be read."""
        if samples_seen == self.samples_seen:
            return self.weights
        for path, seen in self._saved().items():
            if seen == samples_seen:
                with suppress(CheckpointError):
                    return _compared_weights(checkpoint.load(path))
        return None

    def _saved(self) -> dict[Path, int]:
        """Return samples seen by checkpoint, those whose manifest can be read."""
        found = {}
        for path in checkpoint.list_checkpoints(self.path / "checkpoints"):
            with suppress(CheckpointError):
                found[path] = _samples_seen(checkpoint.read_manifest(path), -1)
        return found

    def saved_samples(self) -> set[int]:
        """Return after how many samples the run has saved its weights, the end included."""
        return {self.samples_seen, *self._saved().values()}


def _compared_weights(found: checkpoint.Checkpoint) -> dict[str, NDArray[Any]]:
    return {name: array for name, array in found.state.weights.items() if not name.endswith(ONE_SIDED)}


def _samples_seen(manifest: Mapping[str, Any], otherwise: int) -> int:
    return int(manifest.get("counters", {}).get("samples_seen", otherwise))
