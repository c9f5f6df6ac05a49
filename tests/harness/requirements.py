"""Skip where something is missing, or fail where it was promised."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

#: Comma-separated names that must be there: torch, tensorflow, cluster.
REQUIRE = "HVDTRAIN_REQUIRE"


def require(name: str) -> None:
    """Go on where ``name`` is usable here; else skip, or fail when ``HVDTRAIN_REQUIRE`` names it.

    Args:
        name: ``torch`` or ``tensorflow``, each with its Horovod binding, or ``cluster``: containers
            on this host.
    """
    problem = _CHECKS[name](name)
    if problem is not None:
        skip_or_fail(name, f"{name} is not usable here: {problem}")


def skip_or_fail(name: str, reason: str) -> None:
    """Skip this test with a reason, or fail when ``HVDTRAIN_REQUIRE`` names what it needs."""
    if name in os.environ.get(REQUIRE, "").split(","):
        pytest.fail(f"{reason}, and {REQUIRE} names {name}", pytrace=False)
    pytest.skip(f"{reason}; {REQUIRE}={name} would make this a failure")


def _framework_problem(name: str) -> str | None:
    # Looked up, never imported: this process may be the one that another framework claims.
    horovod = find_spec("horovod")
    if find_spec(name) is None:
        return f"the package {name} is not installed"
    if horovod is None:
        return "the package horovod is not installed"
    folders = [Path(folder) / name for folder in horovod.submodule_search_locations or ()]
    if not any(found for folder in folders for found in folder.glob("mpi_lib*.so")):
        return f"horovod is installed without its binding for {name}"
    return None


def _cluster_problem(name: str) -> str | None:
    del name
    if shutil.which("docker") is None:
        return "there is no docker command"
    if "DOCKER_HOST" not in os.environ and not Path("/var/run/docker.sock").exists():
        return "no docker daemon listens on /var/run/docker.sock"
    return None


_CHECKS: dict[str, Callable[[str], str | None]] = {
    "torch": _framework_problem,
    "tensorflow": _framework_problem,
    "cluster": _cluster_problem,
}
