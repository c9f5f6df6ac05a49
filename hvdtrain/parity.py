"""Prove on a user's own job that both frameworks, and one rank and many, make the same run."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hvdtrain.checkpoint import checkpoint_name
from hvdtrain.compare import Pair, compare_pair
from hvdtrain.errors import ConfigError
from hvdtrain.finished_run import Run
from hvdtrain.wording import counted


def choose_folder(given: Path | None, job_name: str) -> Path:
    """Return the folder for all runs: a given one must be new, and a name that is taken gets the next number.

    Args:
        given: What the user named.
        job_name: Name of the job, for ``runs/<job>-parity``.

    Raises:
        ConfigError: The given folder holds something.
    """
    if given is None:
        base = Path("runs") / f"{job_name}-parity"
        return next(path for path in _numbered(base) if not _is_used(path))
    if _is_used(given):
        held = ", ".join(sorted(path.name for path in given.iterdir())[:4]) if given.is_dir() else "a file"
        raise ConfigError(
            f"parity: --run-dir must be a new or empty folder, got {given}, which holds {held}. Remove it, or name "
            "another one; without --run-dir a new one is made."
        )
    return given


def _numbered(base: Path) -> Iterator[Path]:
    """Yield ``job-parity``, ``job-parity-2``, ``job-parity-3`` and so on."""
    yield base
    yield from (base.with_name(f"{base.name}-{number}") for number in itertools.count(2))


def _is_used(path: Path) -> bool:
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))


def run_parity(
    job: Path,
    folder: Path,
    frameworks: Sequence[str],
    *,
    num_ranks: int,
    rtol: float,
    trace: int,
    options: Sequence[str],
    tell: Callable[[str], None],
) -> list[Pair]:
    """Train the job in every framework at 1 and ``num_ranks`` ranks from one initialisation, and compare in pairs.

    Args:
        job: The job file.
        folder: New folder for all runs.
        frameworks: Frameworks to train in; the first one makes the initial weights.
        num_ranks: Ranks of the larger runs; 1 leaves them out.
        rtol: Tolerance of :func:`compare_runs`.
        trace: Steps between full copies of the weights.
        options: More options of ``hvdtrain train``.
        tell: Takes a line about each run that begins.

    Raises:
        ConfigError: A run fails; the message holds the end of its log.
    """
    sizes = sorted({1, num_ranks})
    number, total = itertools.count(1), 1 + len(frameworks) * len(sizes)

    def told(framework: str, size: int, what: str = "") -> None:
        tell(f"parity: run {next(number)} of {total}: {framework} on {counted(size, 'rank')}{what}, log in {folder}")

    common = [*options, "--log-every-steps", "1"]
    initial = folder / "initial"
    told(frameworks[0], 1, " makes the initial weights")
    _train(job, frameworks[0], 1, initial, [*common, "--max-steps", "0"])
    start = initial / "checkpoints" / checkpoint_name(0)
    runs: dict[tuple[str, int], Run] = {}
    for framework in frameworks:
        for size in sizes:
            path = folder / f"{framework}-{size}"
            told(framework, size)
            _train(job, framework, size, path, [*common, "--init-from", str(start), "--trace", str(trace)])
            runs[framework, size] = Run.read(path)
    pairs = [(runs[f, 1], runs[f, num_ranks]) for f in frameworks if num_ranks > 1]
    pairs += [(runs[a, size], runs[b, size]) for a, b in itertools.pairwise(frameworks) for size in sizes]
    return [compare_pair(a, b, rtol=rtol) for a, b in pairs]


def _train(job: Path, framework: str, size: int, run_dir: Path, options: Sequence[str]) -> None:
    program = [sys.executable, "-m", "hvdtrain"]
    train = ["train", str(job), "--framework", framework, "--run-dir", str(run_dir), *options]
    command = (
        [*program, *train] if size == 1 else [*program, "launch", "--quiet", "-np", str(size), "--", "hvdtrain", *train]
    )
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
        raise ConfigError(
            f"parity: {framework} on {counted(size, 'rank')} must end well, got exit code {code} ({log}):\n  {end}"
        )
