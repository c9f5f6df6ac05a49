"""Folders of finished runs, written by hand, for the tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from hvdtrain.checkpoint import commit
from hvdtrain.finished_run import Run
from hvdtrain.portable import PortableState

Row = Mapping[str, Any]
Weights = Mapping[str, Any]


def array(values: Any) -> NDArray[np.float32]:
    """Return float32, the type of every tensor here."""
    return np.array(values, dtype=np.float32)


def row(step: int, loss: float | None, grad_norm: float = 1.0, *, batch: int = 4) -> Row:
    """Return a training row of a run whose every update takes ``batch`` samples."""
    return {
        "event": "train",
        "global_step": step,
        "samples_seen": step * batch,
        "loss": loss,
        "grad_norm": grad_norm,
    }


def traced(step: int, grad_norms: Mapping[str, float], weight_norms: Mapping[str, float], *, batch: int = 4) -> Row:
    """Return a line of ``trace/steps.jsonl``."""
    norms = {"grad_norms": grad_norms, "weight_norms": weight_norms}
    return {"global_step": step, "samples_seen": step * batch, **norms}


def write_run(
    path: Path,
    rows: Sequence[Row],
    weights: Weights,
    *,
    framework: str = "torch",
    size: int = 1,
    notes: Sequence[str] = (),
    trace: Sequence[Row] = (),
    saved: Mapping[int, Weights] | None = None,
    checkpoints: Mapping[int, Weights] | None = None,
    began_from: str = "",
) -> Path:
    """Write the folder of a finished run: rows, summary, checkpoints, and a trace where one is given.

    ``weights`` are those of the end, ``checkpoints`` those of earlier steps.
    """
    path.mkdir(parents=True)
    evaluation = {"event": "eval", "global_step": 1, "samples_seen": 4, "loss": 99.0}
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [evaluation, *rows]))
    (path / "summary.json").write_text(json.dumps({"framework": framework, "size": size}))
    last = max((line["global_step"] for line in rows), default=0)
    for step, tensors in {**(checkpoints or {}), last: weights}.items():
        seen = next((line["samples_seen"] for line in rows if line["global_step"] == step), 0)
        counters = {"global_step": step, "samples_seen": seen}
        manifest = {"notes": list(notes), "counters": counters, "began_from": began_from}
        commit(path / "checkpoints", step, PortableState(_arrays(tensors)), manifest)
    if trace:
        (path / "trace").mkdir()
        (path / "trace" / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in trace))
    for step, tensors in (saved or {}).items():
        save_file(_arrays(tensors), path / "trace" / f"step-{step:08d}.safetensors")
    return path


def make_run(path: Path, rows: Sequence[Row], weights: Weights, **more: Any) -> Run:
    """Write a run folder and read it."""
    return Run.read(write_run(path, rows, weights, **more))


def _arrays(weights: Weights) -> dict[str, NDArray[Any]]:
    return {name: values if isinstance(values, np.ndarray) else array(values) for name, values in weights.items()}
