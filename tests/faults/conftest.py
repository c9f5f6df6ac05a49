"""One lab per process and framework, and the count of all labs at the end of pytest's report."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.lab import Lab, count

_LAB = pytest.StashKey[Lab]()
#: The tallies of the processes of pytest-xdist.
_TALLIES = pytest.StashKey[list[dict[str, Any]]]()
_KEY = "faults"


@pytest.fixture(scope="session")
def lab(request, tmp_path_factory) -> Lab:
    """Everything that is killed and resumed, each once."""
    made = Lab(tmp_path_factory.mktemp("faults"))
    request.config.stash[_LAB] = made
    return made


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the tally of a process of pytest-xdist to the one that reports."""
    config = session.config
    if _LAB in config.stash and hasattr(config, "workeroutput"):
        config.workeroutput[_KEY] = config.stash[_LAB].tally()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the tally of a process that has ended; one that has crashed sent none."""
    tally = getattr(node, "workeroutput", {}).get(_KEY)
    node.config.stash.setdefault(_TALLIES, []).extend([tally] if tally else [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    here = [config.stash[_LAB].tally()] if _LAB in config.stash else []
    lines = count([*config.stash.get(_TALLIES, []), *here])
    if lines:
        terminalreporter.section("faults")
        for line in lines:
            terminalreporter.write_line(line)
