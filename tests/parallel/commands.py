"""The real program on real ranks, for the drivers in this folder."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from tests.harness import Finished, in_company, mpirun, run_command

FRAMEWORKS = ("torch", "tensorflow")
JOBS = Path(__file__).parent / "jobs"
PROJECT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TIMEOUT_S = in_company(120)
#: What TensorFlow's own libraries write to stderr as they are loaded, which no setting takes away.
_NOTICES = re.compile(
    r"^(WARNING: All log messages before absl|[IW]\d{4} \d\d:|To enable the following instr|\d{4}-).*\n", re.M
)
#: What mpirun adds when ranks leave with a code other than 0.
_MPIRUN = re.compile(r"^-{50,}\n.*?^-{50,}\n", re.M | re.S)


def train(job: str | Path, *options: str, num_ranks: int, **arguments: Any) -> Finished:
    """Run ``hvdtrain train`` under mpirun; a bare name is a file of ``jobs``."""
    path = JOBS / job if isinstance(job, str) else job
    return mpirun(num_ranks, "python", "-m", "hvdtrain", "train", str(path), *options, **limited(arguments))


def train_plain(job: str | Path, *options: str, **arguments: Any) -> Finished:
    """Run ``hvdtrain train`` without a launcher."""
    path = JOBS / job if isinstance(job, str) else job
    return run_command([str(BIN / "hvdtrain"), "train", str(path), *options], **limited(arguments))


def limited(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a launch, with a time limit."""
    return {"timeout_s": TIMEOUT_S, "cwd": PROJECT, **arguments}


def require_success(finished: Finished) -> None:
    """Fail with all output unless the exit code is 0."""
    assert finished.returncode == 0, finished.output


def own_stderr(finished: Finished) -> str:
    """Return what hvdtrain itself wrote to stderr."""
    return _MPIRUN.sub("", _NOTICES.sub("", finished.stderr)).strip()


def row_lines(finished: Finished) -> list[str]:
    """Return the lines of rows of metrics, without the header and the closing table."""
    return [line for line in own_stderr(finished).splitlines() if line.startswith(("train ", "eval "))]


def read_summary(folder: Path) -> dict[str, Any]:
    """Return ``summary.json`` without what depends on time."""
    summary = json.loads((folder / "summary.json").read_text())
    timed = {"samples_per_s", "time_s", "session", "split", "ranks"}
    assert timed <= summary.keys()
    return {name: value for name, value in summary.items() if name not in timed}


def without_bin() -> str:
    """Return PATH without the folder of this interpreter."""
    return os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if Path(p) != BIN)
