"""The harness gives the right verdict on real mpirun launches; no framework takes part."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time
from pathlib import Path
from uuid import uuid4

import pytest

from tests.harness import (
    find_processes,
    in_company,
    launches,
    mpirun,
    mpirun_command,
    require,
    run_command,
    run_ranks,
    start_command,
)
from tests.harness.company import BY_FILE, BY_FRAMEWORK, FIRST, WORKER_COUNT, group_of, place_of
from tests.harness.launches import LAUNCH_MARKER
from tests.harness.reports import RankReport

TESTS = Path(__file__).parents[1]
RANK = 'int(os.environ["OMPI_COMM_WORLD_RANK"])'


@pytest.fixture
def outer(monkeypatch):
    """An id that every process started by this test carries."""
    launch_id = uuid4().hex
    monkeypatch.setenv(LAUNCH_MARKER, launch_id)
    return launch_id


def write_ranked(text: str) -> str:
    """Write a ranked test file into the test's folder and return its path."""
    path = Path.cwd() / "test_ranked.py"
    path.write_text(f"import os, time\nimport pytest\nrank = {RANK}\n\n{textwrap.dedent(text)}")
    return str(path)


def names(tests: tuple[str, ...]) -> list[str]:
    return [test.split("::")[-1] for test in tests]


# ---------------------------------------------------------------- time
@pytest.mark.parametrize(("count", "limit_s"), [(None, 15), ("1", 15), ("2", 30)])
def test_limit_grows_with_the_tests_that_share_the_cores(monkeypatch, count, limit_s):
    monkeypatch.delenv(WORKER_COUNT, raising=False)
    if count:
        monkeypatch.setenv(WORKER_COUNT, count)
    assert in_company(15) == limit_s


@pytest.mark.parametrize(
    ("test", "group"),
    [
        ("tests/unit/test_a.py::test_a[torch]", "unit/test_a.py"),
        ("tests/faults/test_a.py::test_a[torch-rank-0-start]", "faults/ torch"),
        ("tests/faults/test_b.py::test_b[tensorflow-1-10]", "faults/ tensorflow"),
        ("tests/faults/test_b.py::test_tensorflow_is_not_asked", "faults/ torch"),
        ("tests/parity/test_ranks.py::test_a[tensorflow-digits/sgd-2]", "parity/test_ranks.py tensorflow"),
        ("tests/parity/test_peers.py::test_a[ddp-even]", "parity/test_peers.py"),
        ("tests/parallel/test_modes.py::test_a[torch]", "parallel/test_modes.py::test_a[torch]"),
    ],
)
def test_tests_that_share_what_is_costly_have_one_group(test, group):
    assert group_of(test) == group


def test_what_is_alone_or_long_starts_before_all_else():
    groups = ["parallel/test_a.py::test_a", "parity/test_ranks.py torch", "parity/test_ranks.py tensorflow"]
    groups += ["parallel/test_save_speed.py torch", "parallel/test_b.py::test_b"]
    assert sorted(groups, key=place_of) == [groups[number] for number in (3, 2, 1, 0, 4)]


@pytest.mark.parametrize("start", [*FIRST, *BY_FRAMEWORK, *BY_FILE])
def test_beginnings_of_groups_are_those_of_tests(start):
    file, _, test = start.partition(" ")[0].partition("::")
    found = list(TESTS.glob(f"{file.removesuffix('/')}*"))
    assert found
    assert test.partition("[")[0] in "".join(path.read_text() for path in found if path.is_file())


# ---------------------------------------------------------------- run_command
def test_run_command_keeps_both_streams_and_the_exit_code():
    finished = run_command(
        [
            sys.executable,
            "-c",
            "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)",
        ],
        timeout_s=20,
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (7, "out\n", "err\n")
    assert 0 < finished.seconds < 20


def test_run_command_env_adds_replaces_and_removes(monkeypatch):
    monkeypatch.setenv("HARNESS_KEPT", "kept")
    monkeypatch.setenv("HARNESS_GONE", "gone")
    code = "import os; print({k: v for k, v in os.environ.items() if k.startswith('HARNESS')})"
    finished = run_command(
        [sys.executable, "-c", code],
        timeout_s=20,
        env={"HARNESS_NEW": "new", "HARNESS_GONE": None},
    )
    assert eval(finished.stdout) == {"HARNESS_KEPT": "kept", "HARNESS_NEW": "new"}  # noqa: S307


def test_run_command_in_cwd(tmp_path):
    (tmp_path / "sub").mkdir()
    finished = run_command(["pwd"], timeout_s=20, cwd=tmp_path / "sub")
    assert finished.stdout == f"{tmp_path / 'sub'}\n"


def test_run_command_past_its_limit_fails_with_the_tail_of_the_output():
    code = "import time; print('before the wait', flush=True); time.sleep(60)"
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"not done in 2 s\nbefore the wait"):
        run_command([sys.executable, "-c", code], timeout_s=2)
    assert time.monotonic() - began < 10


def test_run_command_past_its_limit_kills_what_ignores_sigterm(outer, monkeypatch):
    monkeypatch.setattr(launches, "TERMINATE_GRACE_S", 1.0)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    began = time.monotonic()
    with pytest.raises(AssertionError, match="not done in 1 s"):
        run_command([sys.executable, "-c", code], timeout_s=1)
    assert time.monotonic() - began < 8
    assert find_processes(outer) == []


LEAVER = """
import subprocess, sys
command = [sys.executable, "-c", "import time; time.sleep({seconds})"]
sleeper = subprocess.Popen(command, start_new_session=True)
print(sleeper.pid)
sleeper.returncode = 0  # it is meant to stay, so Python need not warn of it
"""


def test_run_command_names_and_kills_a_process_left_in_another_session(outer):
    command = [sys.executable, "-c", LEAVER.format(seconds=61)]
    with pytest.raises(AssertionError, match=r"ended with code 0 and left .*time\.sleep\(61\)"):
        run_command(command, timeout_s=20, leftover_grace_s=0.5)
    assert find_processes(outer) == []


def test_run_command_waits_for_a_process_that_ends_within_the_grace_time():
    command = [sys.executable, "-c", LEAVER.format(seconds=1)]
    assert run_command(command, timeout_s=20).returncode == 0


def test_start_command_ends_the_launch_with_the_block():
    with start_command([sys.executable, "-c", "import time; time.sleep(60)"]) as launch:
        # Between fork and exec the child still has this process's environment, which does not name the launch.
        deadline = time.monotonic() + 10
        while not launch.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [process.pid for process in launch.processes()] == [launch.process.pid]
    assert launch.process.returncode == -signal.SIGTERM
    assert launch.processes() == []


# ---------------------------------------------------------------- mpirun
def test_mpirun_command_is_written_out():
    assert mpirun_command(3, "python", "x.py", tagged=True) == [
        *("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--tag-output"),
        *("-np", "3", sys.executable, "x.py"),
    ]


def test_mpirun_gives_every_rank_its_number_and_one_thread():
    # One write a line, also where Python does not buffer: mpirun mixes the writes of ranks.
    code = f"import os; os.write(1, f'{{{RANK}}} {{os.environ[\"OMP_NUM_THREADS\"]}}\\n'.encode())"
    finished = mpirun(3, "python", "-c", code, timeout_s=30)
    assert finished.returncode == 0, finished.output
    assert sorted(finished.stdout.splitlines()) == ["0 1", "1 1", "2 1"]


def test_mpirun_env_sets_the_threads():
    code = "import os; os.write(1, os.environb[b'OMP_NUM_THREADS'] + b'\\n')"
    finished = mpirun(2, "python", "-c", code, timeout_s=30, env={"OMP_NUM_THREADS": "2"})
    assert finished.stdout == "2\n2\n"


# ---------------------------------------------------------------- run_ranks
def test_run_ranks_where_all_pass_returns_one_report_per_rank():
    target = write_ranked("def test_adds():\n    assert 1 + 1 == 2\n")
    reports = run_ranks(target, num_ranks=2, timeout_s=30)
    assert [report.rank for report in reports] == [0, 1]
    assert [names(report.passed) for report in reports] == [["test_adds"], ["test_adds"]]
    assert [report.failed + report.skipped for report in reports] == [(), ()]


def test_run_ranks_with_a_failure_names_the_rank_and_shows_its_text():
    target = write_ranked("def test_differs():\n    assert rank == 0, 'wrong here'\n")
    with pytest.raises(AssertionError, match=r"test_differs failed on \[rank 1 of 2\]") as caught:
        run_ranks(target, num_ranks=2, timeout_s=30)
    assert "AssertionError: wrong here" in str(caught.value)
    assert "failed on [rank 0 of 2]" not in str(caught.value)


def test_run_ranks_with_a_failure_while_the_other_sleeps_ends_soon():
    target = write_ranked(
        """
        def test_one_stops():
            if rank == 0:
                time.sleep(50)
            pytest.fail("stopped")
        """
    )
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"test_one_stops failed on \[rank 1 of 2\]"):
        run_ranks(target, num_ranks=2, timeout_s=45)
    assert time.monotonic() - began < 20


def test_run_ranks_with_a_failure_while_the_other_waits_in_mpi_ends_soon():
    target = write_ranked(
        """
        def test_one_stops_in_mpi():
            from mpi4py import MPI
            assert rank == 0
            MPI.COMM_WORLD.Barrier()
        """
    )
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"test_one_stops_in_mpi failed on \[rank 1 of 2\]"):
        run_ranks(target, num_ranks=2, timeout_s=45)
    assert time.monotonic() - began < 20


def test_run_ranks_that_hang_end_at_the_limit_and_say_where(outer):
    target = write_ranked("def test_waits_for_ever():\n    time.sleep(300)\n")
    began = time.monotonic()
    with pytest.raises(AssertionError, match="not done in 14 s") as caught:
        run_ranks(target, num_ranks=2, timeout_s=14)
    assert time.monotonic() - began < 30
    assert str(caught.value).count("in test_waits_for_ever") == 2
    assert find_processes(outer) == []


def test_run_ranks_with_a_skip_on_one_rank_only_fails():
    target = write_ranked(
        """
        def test_always():
            pass

        @pytest.mark.skipif(rank == 1, reason="differs by rank")
        def test_sometimes():
            pass
        """
    )
    with pytest.raises(AssertionError, match="ranks differ in the tests that passed") as caught:
        run_ranks(target, num_ranks=2, timeout_s=30)
    assert "test_sometimes" in str(caught.value)


def test_run_ranks_without_a_test_fails():
    with pytest.raises(AssertionError, match=r"ended with code 5, ranks without a report: none"):
        run_ranks(write_ranked("x = 1\n"), num_ranks=2, timeout_s=30)


def test_run_ranks_with_every_test_skipped_fails():
    target = write_ranked("@pytest.mark.skip(reason='none')\ndef test_never():\n    pass\n")
    with pytest.raises(AssertionError, match="no test passed on any rank"):
        run_ranks(target, num_ranks=2, timeout_s=30)


def test_run_ranks_with_a_file_that_cannot_be_imported_names_it():
    target = write_ranked("raise KeyError('at import')\n")
    with pytest.raises(AssertionError, match=r"collecting the tests failed on \[rank 0 of 1\]") as caught:
        run_ranks(target, num_ranks=1, timeout_s=30)
    assert "test_ranked.py:5" in str(caught.value)
    assert "KeyError: 'at import'" in str(caught.value)


def test_run_ranks_with_a_rank_that_vanishes_fails():
    target = write_ranked("def test_vanishes():\n    if rank == 1:\n        os._exit(0)\n")
    with pytest.raises(AssertionError, match=r"ranks without a report: \[1\]"):
        run_ranks(target, num_ranks=2, timeout_s=30)


def test_run_ranks_keeps_the_tests_marked_for_this_size():
    target = write_ranked(
        """
        @pytest.mark.ranks(2, 3)
        def test_at_two_or_three():
            pass

        @pytest.mark.ranks(3)
        def test_at_three():
            pass
        """
    )
    two = run_ranks(target, num_ranks=2, timeout_s=30)
    assert [names(report.passed) for report in two] == [["test_at_two_or_three"]] * 2


def test_run_ranks_hands_arguments_to_pytest():
    target = write_ranked("def test_a():\n    pass\n\ndef test_b():\n    pass\n")
    (report,) = run_ranks(target, num_ranks=1, timeout_s=30, args=("-k", "test_b"))
    assert names(report.passed) == ["test_b"]


def test_shared_tmp_path_is_the_same_fresh_folder_on_all_ranks():
    target = write_ranked(
        """
        @pytest.mark.parametrize("round", [1, 2])
        def test_shared(communicator, shared_tmp_path, round):
            assert communicator.all_gather(shared_tmp_path) == [shared_tmp_path] * 2
            assert list(shared_tmp_path.iterdir()) == []
            communicator.barrier()
            (shared_tmp_path / "mark").touch()
        """
    )
    reports = run_ranks(target, num_ranks=2, timeout_s=30)
    assert [len(report.passed) for report in reports] == [2, 2]


def test_assert_on_all_ranks_fails_on_all_when_one_says_no():
    target = write_ranked(
        """
        from tests.harness import assert_on_all_ranks

        def test_verdict(communicator):
            assert_on_all_ranks(communicator, True, "all is well")
            assert_on_all_ranks(communicator, rank != 1, f"odd value {rank}")
        """
    )
    with pytest.raises(AssertionError, match=r"failed on \[rank 0 of 2\]") as caught:
        run_ranks(target, num_ranks=2, timeout_s=30)
    assert "failed on [rank 1 of 2]" in str(caught.value)
    assert str(caught.value).count("AssertionError: odd value 1 [rank 1 of 2]") == 2
    assert "AssertionError: all is well" not in str(caught.value)


# ---------------------------------------------------------------- small parts
def test_rank_report_survives_the_file(tmp_path):
    report = RankReport(rank=1, passed=("a",), failed=("b",), skipped=(), failure_text="why")
    report.write(tmp_path)
    assert RankReport.read_all(tmp_path) == [report]


def test_require_without_promise_skips_and_with_promise_fails(monkeypatch):
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("HVDTRAIN_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is no docker command"):
        require("cluster")
    monkeypatch.setenv("HVDTRAIN_REQUIRE", "torch,cluster")
    with pytest.raises(pytest.fail.Exception, match="HVDTRAIN_REQUIRE names cluster"):
        require("cluster")
