"""Run one pytest file on several ranks and give one verdict over all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.harness.launches import TAIL_CHARACTERS, Finished
from tests.harness.mpi import mpirun
from tests.harness.reports import DUMP_AFTER_S, REPORT_FOLDER, RankReport

PROJECT = Path(__file__).parents[2]
PYTEST = ("python", "-m", "pytest", "-c", str(PROJECT / ".pytest.ini"), "-x", "-q", "--color=no")
# The rank plugin keeps its own faulthandler timer, which pytest's plugin would cancel at a failure.
PLUGINS = ("-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "tests.harness.rank_plugin")


def run_ranks(
    target: str,
    *,
    num_ranks: int,
    timeout_s: float,
    args: Sequence[str] = (),
    env: Mapping[str, str | None] | None = None,
) -> list[RankReport]:
    """Run the tests of ``target`` on every rank and require the same verdict from all.

    Args:
        target: Test file or node id, relative to the project.
        num_ranks: Processes that mpirun starts.
        timeout_s: Limit for the whole launch; five seconds earlier every rank says where it stands.
        args: Further arguments to pytest, such as ``("--adapter", "torch")``.
        env: Changes to the environment, as in ``run_command``.

    Returns:
        One report per rank, by rank.

    Raises:
        AssertionError: A test failed on some rank, a rank left no report, ranks differ, or nothing
            passed; or as ``run_command``.
    """
    where = f"run_ranks({target}, num_ranks={num_ranks})"
    with tempfile.TemporaryDirectory() as name:
        changes = {
            # Options meant for the driver, such as a report file, would make the ranks collide.
            "PYTEST_ADDOPTS": None,
            **(env or {}),
            REPORT_FOLDER: name,
            DUMP_AFTER_S: str(max(timeout_s - 5, timeout_s / 2)),
        }
        command = (*PYTEST, *PLUGINS, target, *args)
        try:
            finished = mpirun(num_ranks, *command, timeout_s=timeout_s, env=changes, cwd=PROJECT)
        except AssertionError:
            # A test that failed on one rank explains why the others never ended.
            _require_no_failure(RankReport.read_all(Path(name)), num_ranks, where)
            raise
        reports = RankReport.read_all(Path(name))
    _require_agreement(reports, num_ranks, finished, where)
    return reports


def _require_no_failure(reports: Sequence[RankReport], num_ranks: int, where: str) -> None:
    lines = [f"{test} failed on [rank {report.rank} of {num_ranks}]" for report in reports for test in report.failed]
    if lines:
        texts = [f"[rank {report.rank} of {num_ranks}]\n{report.failure_text}" for report in reports if report.failed]
        raise AssertionError("\n".join([f"{where}: a test failed", *lines, *texts]))


def _require_agreement(reports: Sequence[RankReport], num_ranks: int, finished: Finished, where: str) -> None:
    """Raise for the first that holds: a failed test, a silent rank, ranks that differ, no test."""
    _require_no_failure(reports, num_ranks, where)
    output = finished.output[-TAIL_CHARACTERS:]
    missing = sorted(set(range(num_ranks)) - {report.rank for report in reports})
    if missing or finished.returncode:
        raise AssertionError(
            f"{where}: ended with code {finished.returncode}, ranks without a report: {missing or 'none'}\n{output}"
        )
    first = reports[0]
    for report in reports[1:]:
        for kind in ("passed", "skipped"):
            here, there = getattr(first, kind), getattr(report, kind)
            if here != there:
                raise AssertionError(
                    f"{where}: ranks differ in the tests that {kind}\n"
                    f"rank {first.rank}: {list(here)}\nrank {report.rank}: {list(there)}\n{output}"
                )
    if not first.passed:
        raise AssertionError(f"{where}: no test passed on any rank\n{output}")
