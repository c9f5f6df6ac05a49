"""Prove on a user's own job that both frameworks, and one rank and many, make the same run."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.checkpoint import checkpoint_name
from hvdtrain.compare import Pair, Run, compare_pair
from hvdtrain.errors import ConfigError


def run_parity(
    job: Path,
    *,
    num_ranks: int,
    folder: Path,
    frameworks: Sequence[str],
    rtol: float,
    trace: int,
    options: Sequence[str],
) -> list[Pair]:
    """Train the job in every framework at 1 and ``num_ranks`` ranks from one initialisation, and compare in pairs.

    Args:
        job: The job file.
        num_ranks: Ranks of the larger runs; 1 leaves them out.
        folder: New folder for all runs.
        frameworks: Frameworks to train in; the first one makes the initial weights.
        rtol: Tolerance of :func:`compare_runs`.
        trace: Steps between full copies of the weights.
        options: More options of ``hvdtrain train``.

    Raises:
        ConfigError: A run fails; the message holds the end of its log.
    """
    common = [*options, "--log-every-steps", "1"]
    initial = folder / "initial"
    _train(job, frameworks[0], 1, initial, [*common, "--max-steps", "0"])
    start = initial / "checkpoints" / checkpoint_name(0)
    runs: dict[tuple[str, int], Run] = {}
    sizes = sorted({1, num_ranks})
    for framework in frameworks:
        for size in sizes:
            path = folder / f"{framework}-{size}"
            _train(job, framework, size, path, [*common, "--init-from", str(start), "--trace", str(trace)])
            runs[framework, size] = Run.read(path)
    pairs = [(runs[f, 1], runs[f, num_ranks]) for f in frameworks if num_ranks > 1]
    pairs += [(runs[a, size], runs[b, size]) for a, b in itertools.pairwise(frameworks) for size in sizes]
    return [compare_pair(a, b, rtol=rtol) for a, b in pairs]


def _train(job: Path, framework: str, size: int, run_dir: Path, options: Sequence[str]) -> None:
    program = [sys.executable, "-m", "hvdtrain"]
    train = ["train", str(job), "--framework", framework, "--run-dir", str(run_dir), *options]
    command = [*program, *train] if size == 1 else [*program, "launch", "-np", str(size), "--", "hvdtrain", *train]
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    log = run_dir.with_suffix(".log")
    with log.open("w") as stream:
        code = subprocess.run(  # noqa: S603  # our own program
            command, stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False
        ).returncode
    if code:
        lines = [line for line in log.read_text().splitlines() if line.strip()]
        told = [line for line in lines if line.startswith("hvdtrain: error")] or lines[-8:]
        end = "\n  ".join(told)
        raise ConfigError(f"parity: {framework} on {size} ranks must end well, got exit code {code} ({log}):\n  {end}")
