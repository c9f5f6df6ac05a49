"""Compare two runs, aligned by samples seen, whatever their framework and number of ranks: are they the same?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdtrain.errors import ConfigError
from hvdtrain.finished_run import ONE_SIDED, Run
from hvdtrain.trace import read_traced_weights
from hvdtrain.wording import counted

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
    "bf16": ("rounds to 8 bits in other places in each framework", "rounds to 8 bits what each rank sums"),
    "fp16 compression": ("rounds to 11 bits what differs by less", "rounds to 11 bits what each rank sends"),
}


@dataclass
class Comparison:
    """How far two runs are apart; each difference is relative, as its tolerance is.

    Attributes:
        loss: Largest difference of a loss, relative to ``max(loss, 1 % of the first)``.
        grad_norm: Largest difference of the gradient's norm, relative likewise.
        weights: Largest difference of a tensor's values, relative to the tensor's norm; at the end where both runs end
            after as many samples, else at the last checkpoint of as many.
        weights_seen: Samples seen by the weights that were compared; ``None`` where no two of the same place exist.
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
    weights_seen: int | None = None

    @property
    def is_same(self) -> bool:
        """Whether the two runs are the same within tolerance."""
        return self.first_fault is None

    @property
    def began_apart(self) -> bool:
        """Whether the runs are known to have begun from different weights."""
        return bool(self.a.began_from and self.b.began_from) and self.a.began_from != self.b.began_from


@dataclass(frozen=True)
class Pair:
    """Two runs that were compared.

    Attributes:
        excuses: Why the curves cannot be equal; empty when they can.
        left_out: What was not compared, and why; empty when all was.
        remarks: What a reader must know to understand the result, such as runs of different length.
    """

    comparison: Comparison
    excuses: tuple[str, ...]
    left_out: str = ""
    remarks: tuple[str, ...] = ()

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
    result = compare_runs(a, b, rtol=rtol, ignore=ignore)
    return Pair(result, tuple(excused), left_out, tuple(_remarks(result)))


def _remarks(result: Comparison) -> Iterator[str]:
    """Yield what makes two runs differ before any arithmetic does."""
    a, b = result.a, result.b
    if result.began_apart:
        yield "the runs began from different weights; give both the same --init-from, or the same seed and framework"
    if a.samples_seen == b.samples_seen:
        return
    last = max(set(a.rows) & set(b.rows))
    ends = f"{a.samples_seen:,} and {b.samples_seen:,} samples"
    yield f"the runs end after {ends}; rows were compared up to {last:,}"
    if result.weights_seen is None:
        yield "weights were not compared, for the runs have no checkpoint at the same step; see --save-every-steps"
    else:
        yield f"weights were compared at the checkpoints after {counted(result.weights_seen, 'sample')}"


def compare_runs(a: Run, b: Run, *, rtol: float, ignore: tuple[str, ...] = ()) -> Comparison:
    """Compare losses, gradient norms, traces and weights of two runs, as far as both have gone.

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
    faults += _compare_weights(result, noisy, ignore)
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
            if name in noisy or name.endswith((*ignore, ONE_SIDED)):
                continue
            difference = relative(norm, b.weight_norms[name], 0.0)
            if full[0] is not None and full[1] is not None:
                difference = max(difference, _distance(full[0][name], full[1][name]))
            if difference > limit:
                text = f"step {a.global_step}: tensor {name} differs by {difference:.2e} of its norm"
                return [(a.global_step, text)]
    return []


def _weights_of_one_place(a: Run, b: Run) -> tuple[int, Mapping[str, NDArray[Any]], Mapping[str, NDArray[Any]]] | None:
    """Return the latest weights of both runs after as many samples, and how many; ``None`` where there are none."""
    if a.samples_seen == b.samples_seen:
        return a.samples_seen, a.weights, b.weights
    for seen in sorted(a.saved_samples() & b.saved_samples(), reverse=True):
        mine, theirs = a.weights_at(seen), b.weights_at(seen)
        if mine is not None and theirs is not None and mine.keys() == theirs.keys():
            return seen, mine, theirs
    return None


def _compare_weights(result: Comparison, noisy: set[str], ignore: tuple[str, ...]) -> list[tuple[int, str]]:
    found = _weights_of_one_place(result.a, result.b)
    if found is None:
        return []
    result.weights_seen, mine, theirs = found
    for name, array in mine.items():
        if name.endswith(ignore):
            continue
        difference = _distance(array, theirs[name])
        if name in noisy:
            result.noise[name] = difference
        elif difference > result.weights:
            result.weights, result.worst_tensor = difference, name
    if result.weights <= WEIGHT_FACTOR * result.rtol:
        return []
    step = max(row["global_step"] for seen, row in result.a.rows.items() if seen <= result.weights_seen)
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
