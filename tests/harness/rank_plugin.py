"""The pytest plugin inside every rank that ``run_ranks`` starts: fixtures, report, a clean way out."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harness.reports import DUMP_AFTER_S, REPORT_FOLDER, RankReport, launched_rank_and_size
from tests.harness.verdicts import assert_on_all_ranks

__all__ = ["assert_on_all_ranks", "communicator", "shared_tmp_path"]

#: Ranks that fail together all get to write their reports before the first of them ends the job.
FAREWELL_S = 0.5


@pytest.fixture(scope="session")
def communicator() -> Any:
    """The control plane over all ranks."""
    # MPI starts here and not while the tests are collected.
    from hvdtrain.communicator import connect

    return connect()


@pytest.fixture
def shared_tmp_path(communicator: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh folder of the root's, the same path on every rank."""
    path = tmp_path_factory.mktemp("shared") if communicator.topology.is_root else None
    return communicator.broadcast(path)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Set up what must stand before the tests are collected."""
    folder = os.environ.get(REPORT_FOLDER)
    rank, _ = launched_rank_and_size()
    if folder is not None:
        # Ranks that pick a numbered folder at the same moment would race for the number.
        config.option.basetemp = str(Path(folder) / f"tmp-{rank}")
    config.pluginmanager.register(_Recorder(rank, folder), "rank-recorder")
    # A copy of the stream, because pytest redirects the descriptor while a test runs.
    stream = os.fdopen(os.dup(2), "w")
    config.add_cleanup(stream.close)
    faulthandler.enable(file=stream)
    config.add_cleanup(faulthandler.disable)
    if DUMP_AFTER_S in os.environ:
        faulthandler.dump_traceback_later(float(os.environ[DUMP_AFTER_S]), file=stream)
        config.add_cleanup(faulthandler.cancel_dump_traceback_later)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that are meant for this number of ranks; the number is equal everywhere."""
    _, size = launched_rank_and_size()
    kept, dropped = [], []
    for item in items:
        marker = item.get_closest_marker("ranks")
        (kept if marker is None or size in marker.args else dropped).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)


class _Recorder:
    """Gathers the outcomes of one session and writes them as one report."""

    def __init__(self, rank: int, folder: str | None) -> None:
        self.rank = rank
        self.folder = folder
        self.outcomes: dict[str, str] = {}
        self.texts: list[str] = []
        self.exit_code = 0

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._record(f"collecting {report.nodeid or 'the tests'}", "failed", report.longreprtext)
        elif report.skipped:
            self._record(report.nodeid, "skipped")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            sections = [f"{title}\n{text}" for title, text in report.sections]
            self._record(report.nodeid, "failed", "\n".join([report.longreprtext, *sections]))
        elif report.skipped:
            self._record(report.nodeid, "skipped")
        elif report.when == "call":
            self._record(report.nodeid, "passed")

    def _record(self, test: str, outcome: str, text: str = "") -> None:
        # A failure stands, whatever a later phase of the same test says.
        if self.outcomes.get(test) != "failed":
            self.outcomes[test] = outcome
        if text:
            self.texts.append(f"{test}\n{text}")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.exit_code = int(exitstatus)
        if self.folder is not None:
            report = RankReport(
                rank=self.rank,
                passed=self._tests("passed"),
                failed=self._tests("failed"),
                skipped=self._tests("skipped"),
                failure_text="\n".join(self.texts),
            )
            report.write(Path(self.folder))

    def _tests(self, outcome: str) -> tuple[str, ...]:
        return tuple(test for test, got in self.outcomes.items() if got == outcome)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """End a failed rank at once where MPI runs: finalizing it would wait for the other ranks."""
        if self.exit_code and "mpi4py.MPI" in sys.modules:
            time.sleep(FAREWELL_S)
            _flush((sys.stdout, sys.stderr))
            os._exit(self.exit_code)


def _flush(streams: Sequence[Any]) -> None:
    for stream in streams:
        stream.flush()
