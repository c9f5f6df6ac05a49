"""The environments that ``install_mpis.sh`` makes, for the drivers in this folder."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

from tests.harness import locked

#: ``system`` is the environment of the tests themselves.
MPIS = ("system", "openmpi", "mpich")


@functools.cache
def bin_folder(mpi: str) -> Path:
    """Return the folder of programs of an environment that is complete."""
    if mpi == "system":
        return Path(sys.executable).parent
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("HVDTRAIN_CACHE") or user / "hvdtrain") / "mpis"
    folder.mkdir(parents=True, exist_ok=True)
    script = ["bash", str(Path(__file__).with_name("install_mpis.sh"))]
    with locked(folder / "lock"):
        done = subprocess.run(script, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / mpi / "bin"


def activated(mpi: str) -> dict[str, str]:
    """Return the changes of a user's environment who has activated that one."""
    return {"PATH": os.pathsep.join([str(bin_folder(mpi)), os.environ["PATH"]]), "OMP_NUM_THREADS": "1"}
