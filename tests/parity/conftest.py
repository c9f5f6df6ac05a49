"""All runs that the parity tests compare, made once per session: one launch per framework and number of ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdtrain.finished_run import Run
from tests.harness import locked, mpirun, require
from tests.parity.runs import JOBS, OPTIMIZERS

_SCRIPT = Path(__file__).with_name("runs.py")

#: Runs that are also made at 2, 3 and 4 ranks.
RANKED = ("digits/sgd", "digits/adamw", "transformer/adamw")
REPEATED = ("digits/adam/once", "digits/adam/again")
SIZES = (1, 2, 3, 4)

GetRun = Callable[[str, int, str], Run]


def names_of(size: int) -> list[str]:
    """Return the names of all runs on this number of ranks."""
    if size > 1:
        return [*RANKED, *REPEATED]
    every = [f"{job}/{optimizer}" for job in JOBS for optimizer in OPTIMIZERS]
    return [*every, *(f"{name}/other-order" for name in RANKED), *REPEATED]


@pytest.fixture(scope="session")
def runs(shared_folder: Path) -> GetRun:
    """Return ``get(framework, size, name)``, which launches what is missing."""
    folder = shared_folder / "parity"
    folder.mkdir(exist_ok=True)
    initial = folder / "initial"

    def launch(framework: str, size: int, names: list[str], out: Path, initial: Path | None) -> None:
        require(framework)
        more = ["--initial", str(initial)] if initial else []
        script = ["python", str(_SCRIPT), "--framework", framework, "--out", str(out), "--runs", ",".join(names), *more]
        path = os.pathsep.join([str(_SCRIPT.parents[2]), os.environ.get("PYTHONPATH", "")])
        finished = mpirun(size, *script, timeout_s=600, env={"PYTHONPATH": path})
        assert finished.returncode == 0, finished.stdout + finished.stderr

    def get(framework: str, size: int, name: str) -> Run:
        with locked(folder / "initial.lock"):
            if not initial.exists():
                launch("torch", 1, list(JOBS), initial, None)
        out = folder / f"{framework}-{size}"
        with locked(folder / f"{framework}-{size}.lock"):
            if not out.exists():
                launch(framework, size, names_of(size), out, initial)
        return Run.read(out / name.replace("/", "-"))

    return get
