"""Compare two runs, aligned by samples seen, whatever their framework and number of ranks: are they the same?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdtrain import checkpoint
from hvdtrain.errors import CheckpointError, ConfigError
from hvdtrain.plain_files import open_plain, printable, read_json
from hvdtrain.trace import TracedStep, read_trace, read_traced_weights

#: Weights may differ by this many times the tolerance of the loss, relative to their norm.
WEIGHT_FACTOR = 10.0

#: A gradient below this part of the whole gradient at every step is zero in exact arithmetic (such as that of the
#: key bias of attention): rounding noise that Adam magnifies, so its tensor is reported apart.
NOISE_RATIO = 1e-6

#: A norm is compared relative to itself or to this part of its first value, so that noise near zero does not count.
FLOOR_RATIO = 0.01


#: What a run may note, and why it then cannot be equal: between frameworks, and between numbers of ranks. A native
#: optimizer is no excuse: parity is what was asked for.
_LIMITS = {
    "dropout": ("draws other numbers in each framework", "draws other numbers on each rank"),
    "batch norm": ("keeps the unbiased variance in PyTorch, the biased in Keras", "uses the statistics of each rank"),
}

#: A summary is a few kilobytes.
_MAX_SUMMARY_BYTES = 1 << 20

#: Written by PyTorch alone.
_ONE_SIDED = "num_batches_tracked"


@dataclass(frozen=True)
class Run:
    """What a finished run left behind, as far as a comparison needs it.

    Attributes:
        rows: Rows of training metrics by samples seen.
        weights: Final weights by neutral name.
        notes: What the run cannot promise, by the adapter's own words.
    """

    path: Path
    framework: str
    size: int
    rows: Mapping[int, Mapping[str, Any]]
    weights: Mapping[str, NDArray[Any]]
    trace: Mapping[int, TracedStep]
    notes: tuple[str, ...]

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
        return cls(
            path,
            str(summary["framework"]),
            int(summary["size"]),
            {int(row["samples_seen"]): row for row in rows},
            {name: array for name, array in final.state.weights.items() if not name.endswith(_ONE_SIDED)},
            read_trace(path),
            tuple(map(str, final.manifest["notes"])),
        )


@dataclass
class Comparison:
    """How far two runs are apart; each difference is relative, as its tolerance is.

    Attributes:
        loss: Largest difference of a loss, relative to ``max(loss, 1 % of the first)``.
        grad_norm: Largest difference of the gradient's norm, relative likewise.
        weights: Largest difference of a tensor's final values, relative to the tensor's norm.
        worst_tensor: The tensor of that difference.
        noise: Final difference of the tensors whose gradient is rounding noise, reported apart.
        first_fault: The first thing that left tolerance, in words; ``None`` when nothing did.
        num_rows: Rows that both runs have.
    """

    a: Run
    b: Run
    rtol: float
    loss: float = 0.0
    grad_norm: float = 0.0
    weights: float = 0.0
    worst_tensor: str = ""
    noise: dict[str, float] = field(default_factory=dict)
    first_fault: str | None = None
    num_rows: int = 0

    @property
    def is_same(self) -> bool:
        """Whether the two runs are the same within tolerance."""
        return self.first_fault is None


@dataclass(frozen=True)
class Pair:
    """Two runs that were compared.

    Attributes:
        excuses: Why the curves cannot be equal; empty when they can.
        left_out: What was not compared, and why; empty when all was.
    """

    comparison: Comparison
    excuses: tuple[str, ...]
    left_out: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether the pair differs without an excuse."""
        return not self.comparison.is_same and not self.excuses


def compare_pair(a: Run, b: Run, *, rtol: float) -> Pair:
    """Compare two runs as far as their notes let them be equal; see :func:`compare_runs`."""
    notes = sorted({*a.notes, *b.notes} & set(_LIMITS))
    crosses, spreads = a.framework != b.framework, a.size != b.size
    ignore = ("running_mean", "running_var") if "batch norm" in notes and (crosses or spreads) else ()
    left_out = f"running statistics: batch norm {_LIMITS['batch norm'][0 if crosses else 1]}" if ignore else ""
    excused = []
    for note in notes:
        between_frameworks, between_sizes = _LIMITS[note]
        # Of batch norm, only the running statistics differ between frameworks, and those are left out.
        excused += [f"{note} {between_frameworks}"] if crosses and note != "batch norm" else []
        excused += [f"{note} {between_sizes}"] if spreads else []
    return Pair(compare_runs(a, b, rtol=rtol, ignore=ignore), tuple(excused), left_out)


def compare_runs(a: Run, b: Run, *, rtol: float, ignore: tuple[str, ...] = ()) -> Comparison:
    """Compare losses, gradient norms, traces and final weights of two runs.

    Args:
        a: One run.
        b: The other one.
        rtol: Tolerance of a loss relative to ``max(loss, 1 % of the first loss)``; weights get ten times that,
            relative to the tensor's norm.
        ignore: Suffixes of tensors that cannot be equal, such as ``running_var``.

    Raises:
        ConfigError: The runs share no row, or hold different tensors.
    """
    result = Comparison(a, b, rtol)
    shared = sorted(set(a.rows) & set(b.rows))
    if not shared:
        raise ConfigError(
            f"compare: runs must share counts of samples seen, got none in {a.path} and {b.path}. Train both with the "
            "same global_batch_size and log_every_steps."
        )
    if set(a.weights) != set(b.weights):
        raise ConfigError(
            f"compare: runs must hold the same tensors, got only in {a.path}: {_only(a, b)}; only in {b.path}: "
            f"{_only(b, a)}. Give the layers the same names, or the job a names mapping."
        )
    _require_same_shapes(a, b)
    result.num_rows = len(shared)
    faults = _compare_rows(result, shared)
    noisy = _noise_tensors(a, b)
    faults += _compare_traces(result, noisy, ignore)
    faults += _compare_final(result, noisy, ignore)
    result.first_fault = min(faults, default=(0, None), key=lambda fault: fault[0])[1]
    return result


def _require_same_shapes(a: Run, b: Run) -> None:
    shapes = [(name, array.shape, b.weights[name].shape) for name, array in a.weights.items()]
    differing = [
        f"{name} {mine} in {a.path} and {theirs} in {b.path}" for name, mine, theirs in shapes if mine != theirs
    ]
    if differing:
        raise ConfigError(
            f"compare: tensors must have the same shape, got {'; '.join(differing)}. Compare runs of the same model."
        )


def _compare_rows(result: Comparison, shared: list[int]) -> list[tuple[int, str]]:
    faults: list[tuple[int, str]] = []
    a, b = result.a.rows, result.b.rows
    for name, limit in (("loss", result.rtol), ("grad_norm", WEIGHT_FACTOR * result.rtol)):
        floor = FLOOR_RATIO * abs(a[shared[0]][name] or 0.0)
        for seen in shared:
            step, difference = a[seen]["global_step"], relative(a[seen][name], b[seen][name], floor)
            setattr(result, name, max(getattr(result, name), difference))
            if difference > limit:
                faults.append((step, f"step {step}: {name} {_told(a[seen][name])} and {_told(b[seen][name])}"))
    return faults


def _compare_traces(result: Comparison, noisy: set[str], ignore: tuple[str, ...]) -> list[tuple[int, str]]:
    """Return the first step and tensor whose weights leave tolerance, by norms each step and values where saved."""
    limit = WEIGHT_FACTOR * result.rtol
    for seen in sorted(set(result.a.trace) & set(result.b.trace)):
        a, b = result.a.trace[seen], result.b.trace[seen]
        full = [read_traced_weights(run.path, step.global_step) for run, step in ((result.a, a), (result.b, b))]
        for name, norm in a.weight_norms.items():
            if name in noisy or name.endswith((*ignore, _ONE_SIDED)):
                continue
            difference = relative(norm, b.weight_norms[name], 0.0)
            if full[0] is not None and full[1] is not None:
                difference = max(difference, _distance(full[0][name], full[1][name]))
            if difference > limit:
                text = f"step {a.global_step}: tensor {name} differs by {difference:.2e} of its norm"
                return [(a.global_step, text)]
    return []


def _compare_final(result: Comparison, noisy: set[str], ignore: tuple[str, ...]) -> list[tuple[int, str]]:
    for name, array in result.a.weights.items():
        if name.endswith(ignore):
            continue
        difference = _distance(array, result.b.weights[name])
        if name in noisy:
            result.noise[name] = difference
        elif difference > result.weights:
            result.weights, result.worst_tensor = difference, name
    if result.weights <= WEIGHT_FACTOR * result.rtol:
        return []
    step = max(row["global_step"] for row in result.a.rows.values())
    return [(step, f"step {step}: tensor {result.worst_tensor} differs by {result.weights:.2e} of its norm")]


def _noise_tensors(a: Run, b: Run) -> set[str]:
    """Return the tensors whose gradient is rounding noise at every traced step of both runs."""
    steps = [*a.trace.values(), *b.trace.values()]
    if not steps:
        return set()
    names = set(steps[0].grad_norms)
    for step in steps:
        whole = np.sqrt(sum(norm * norm for norm in step.grad_norms.values()))
        names &= {name for name, norm in step.grad_norms.items() if norm <= NOISE_RATIO * whole}
    return names


def relative(a: float | None, b: float | None, floor: float) -> float:
    """Return ``|a - b|`` relative to the larger of both and ``floor``; infinite when one is no number."""
    if a is None or b is None:
        return 0.0 if a is b else np.inf
    scale = max(abs(a), abs(b), floor)
    difference = abs(a - b) / scale if scale else 0.0
    return difference if np.isfinite(difference) else np.inf


def _distance(a: NDArray[Any], b: NDArray[Any]) -> float:
    x, y = a.astype(np.float64), b.astype(np.float64)
    norm = float(np.linalg.norm(x))
    difference = float(np.linalg.norm(x - y))
    difference = difference / norm if norm else difference
    return difference if np.isfinite(difference) else np.inf


def _told(value: float | None) -> str:
    return "none" if value is None else f"{value:.9g}"


def _only(a: Run, b: Run) -> list[str] | str:
    return sorted(set(a.weights) - set(b.weights)) or "none"
