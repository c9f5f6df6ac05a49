"""A run in full detail, for comparisons: norms of every tensor each step, all weights every few steps.

Costs a copy of the weights each step, so only ``hvdtrain parity`` turns it on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from hvdtrain.callbacks import Callback, StepReport
from hvdtrain.plain_files import open_plain, require_plain

if TYPE_CHECKING:
    from hvdtrain.trainer import Trainer

#: Folder of the trace inside a run folder.
FOLDER = "trace"


class Trace(Callback):
    """Writes ``trace/steps.jsonl`` and ``trace/step-00000020.safetensors`` on the root."""

    def __init__(self, run_dir: Path, every: int) -> None:
        """Save all weights every ``every`` steps."""
        self._folder = run_dir / FOLDER
        self._every = every

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Save the initial weights."""
        if trainer.topology.is_root:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._cut_back(trainer.counters.global_step)
            self._save(trainer.export_state().weights, trainer.counters.global_step)

    def on_step_end(self, trainer: Trainer, report: StepReport) -> None:
        """Write the norms of this step."""
        if not trainer.topology.is_root:
            return
        weights = trainer.export_state().weights
        row = {
            "global_step": report.global_step,
            "samples_seen": trainer.counters.samples_seen,
            "grad_norms": dict(report.result.grad_norms),
            "weight_norms": {name: float(np.linalg.norm(w.astype(np.float64))) for name, w in weights.items()},
        }
        with (self._folder / "steps.jsonl").open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        if report.global_step % self._every == 0:
            self._save(weights, report.global_step)

    def _cut_back(self, global_step: int) -> None:
        """Take away what a killed run wrote after the step that is restored."""
        file = self._folder / "steps.jsonl"
        if file.exists():
            lines = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
            kept = [line for line in lines if json.loads(line)["global_step"] <= global_step]
            file.write_text("".join(kept))

    def _save(self, weights: Mapping[str, NDArray[Any]], global_step: int) -> None:
        copies = {name: np.array(array, order="C") for name, array in weights.items()}
        save_file(copies, self._folder / f"step-{global_step:08d}.safetensors")


@dataclass(frozen=True)
class TracedStep:
    """Norms of one step by tensor."""

    global_step: int
    grad_norms: Mapping[str, float]
    weight_norms: Mapping[str, float]


def read_trace(run_dir: Path) -> dict[int, TracedStep]:
    """Return the traced steps of a run by samples seen; none when it was not traced."""
    file = run_dir / FOLDER / "steps.jsonl"
    if not file.exists():
        return {}
    with open_plain(file) as stream:
        rows = [json.loads(line) for line in stream]
    return {r["samples_seen"]: TracedStep(r["global_step"], r["grad_norms"], r["weight_norms"]) for r in rows}


def read_traced_weights(run_dir: Path, global_step: int) -> dict[str, NDArray[Any]] | None:
    """Return all weights after a step, ``None`` when they were not saved there."""
    file = run_dir / FOLDER / f"step-{global_step:08d}.safetensors"
    if not file.exists():
        return None
    require_plain(file)
    return load_file(file)
