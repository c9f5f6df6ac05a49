"""One lab per session, and its count at the end of pytest's report."""

from __future__ import annotations

import pytest

from tests.faults.lab import Lab

_LAB = pytest.StashKey[Lab]()


@pytest.fixture(scope="session")
def lab(request, tmp_path_factory) -> Lab:
    """Everything that is killed and resumed, each once."""
    made = Lab(tmp_path_factory.mktemp("faults"))
    request.config.stash[_LAB] = made
    return made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash[_LAB].count() if _LAB in config.stash else []
    if lines:
        terminalreporter.section("faults")
        for line in lines:
            terminalreporter.write_line(line)
