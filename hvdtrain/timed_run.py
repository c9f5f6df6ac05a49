"""A short run of a job in processes of its own, and what it left in its run folder: times, split and memory."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain import checkpoint
from hvdtrain.errors import ConfigError
from hvdtrain.portable import PortableState
from hvdtrain.wording import counted

#: More steps than any short run makes.
_MANY = 1_000_000


@dataclass(frozen=True)
class TimedRun:
    """What one run left.

    Attributes:
        num_steps: Steps that it made.
        step_ms: Time of each step behind the first, seen from the root.
        split: Mean ms of each part of a step; see :mod:`hvdtrain.step_split`.
        memory_bytes: The most memory that a rank had.
        state: What it saved at its end; ``None`` where nothing was.
    """

    num_steps: int
    step_ms: tuple[float, ...]
    split: dict[str, float]
    memory_bytes: int
    state: PortableState | None


def threads_environ(num_local_ranks: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return an environment in which every rank gets the share of cores that one of ``num_local_ranks`` has.

    ``OMP_NUM_THREADS`` stands where it is set.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // num_local_ranks)
    return {"OMP_NUM_THREADS": str(threads), **environ}


def launch_words(num_ranks: int, command: Sequence[str]) -> list[str]:
    """Return the command line that launches ``command`` on this machine."""
    return [sys.executable, "-m", "hvdtrain", "launch", "--quiet", "-np", str(num_ranks), "--", *command]


def train_words(job: Path, framework: str, run_dir: Path, *options: str) -> list[str]:
    """Return a ``hvdtrain train`` that logs every step and evaluates at its end alone."""
    return [
        *("hvdtrain", "train", str(job), "--framework", framework, "--quiet", "--log-every-steps", "1"),
        *("--eval-every-epochs", str(_MANY), *options, "--run-dir", str(run_dir)),
    ]


def run(who: str, num_ranks: int, command: Sequence[str], environ: Mapping[str, str], log: Path | None = None) -> str:
    """Launch ``command``, wait for it, and return what it printed.

    Args:
        who: Begins the message of an error.
        num_ranks: Ranks, all on this machine.
        command: Program and arguments.
        environ: Its environment.
        log: Where to write all output.

    Raises:
        ConfigError: It ends with a code other than 0; the message holds the end of its output.
    """
    done = subprocess.run(  # noqa: S603  # our own program
        launch_words(num_ranks, command),
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if log is not None:
        log.write_text(done.stdout + done.stderr)
    require_success(who, num_ranks, command, done.returncode, done.stderr)
    return done.stdout


def require_success(who: str, num_ranks: int, command: Sequence[str], code: int, errors: str) -> None:
    """Refuse a launch that did not end well.

    Raises:
        ConfigError: Holds the end of ``errors``.
    """
    if code:
        end = "\n  ".join([line for line in errors.splitlines() if line.strip()][-8:])
        raise ConfigError(
            f"{who}: {' '.join(command)} must end well on {counted(num_ranks, 'rank')}, got {code}:\n  {end}"
        )


def take_run(run_dir: Path) -> TimedRun:
    """Return what a run left, and remove its folder."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    times = [row["time_s"] for row in rows if row["event"] == "train"]
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    newest = checkpoint.find_latest(run_dir / "checkpoints")
    taken = TimedRun(
        len(times),
        tuple(1e3 * (after - before) for before, after in itertools.pairwise(times)),
        summary["split"],
        max(entry["memory_bytes"] for entry in summary["ranks"]),
        None if newest is None else newest.state,
    )
    shutil.rmtree(run_dir)
    return taken
