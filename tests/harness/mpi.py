"""Real ``mpirun`` on this host."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.harness.launches import Finished, run_command

MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none")


def mpirun_command(num_ranks: int, *arguments: str, tagged: bool = False) -> list[str]:
    """Return the command line; a leading ``python`` becomes the interpreter of this process."""
    program, *rest = arguments
    if program == "python":
        program = sys.executable
    # Not tagged by default: a tag goes before every write, also in the middle of a line.
    tag = ["--tag-output"] if tagged else []
    return [*MPIRUN, *tag, "-np", str(num_ranks), program, *rest]


def mpirun(
    num_ranks: int,
    *arguments: str,
    timeout_s: float,
    env: Mapping[str, str | None] | None = None,
    cwd: str | Path | None = None,
    tagged: bool = False,
) -> Finished:
    """Run a program on ``num_ranks`` ranks to its end, with one thread each unless ``env`` differs.

    Raises:
        AssertionError: As ``run_command``.
    """
    command = mpirun_command(num_ranks, *arguments, tagged=tagged)
    return run_command(command, timeout_s=timeout_s, env={"OMP_NUM_THREADS": "1", **(env or {})}, cwd=cwd)
