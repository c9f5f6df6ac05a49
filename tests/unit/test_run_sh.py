"""The one command goes on after a failure, keeps its exit code, and ends with the totals."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.harness import Finished, run_command

PROJECT = Path(__file__).parents[2]
PASSES = "def test_p():\n    pass\n"
FAILS = "def test_f():\n    assert 1 == 2\n"
SKIPS = "import pytest\n@pytest.mark.skip(reason='none')\ndef test_s():\n    pass\n"
ERRORS = "def test_e(no_such_fixture):\n    pass\n"


@pytest.fixture
def project(tmp_path):
    """A project with this one's command and settings, an install that does nothing, and no tests."""
    for name in (".pytest.ini", ".ruff.toml", "tests/run.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / name, tmp_path / name)
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/install.sh").write_text("exit 0\n")
    return tmp_path


def run(project: Path, tests: dict[str, str], *stages: str, workers: str | None = "0") -> tuple[Finished, str]:
    """Run the command over these tests, one after the other by default; return its result and its last line."""
    # The command takes its tools from this folder.
    venv = str(Path(sys.executable).parents[1])
    for name, text in tests.items():
        path = project / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # From elsewhere: the command finds its project itself.
    env = {"HVDTRAIN_VENV": venv, "HVDTRAIN_TEST_WORKERS": workers}
    finished = run_command(["bash", str(project / "tests/run.sh"), *stages], timeout_s=50, cwd="/", env=env)
    return finished, finished.stdout.splitlines()[-1] if finished.stdout else ""


def table(finished: Finished) -> dict[str, str]:
    """Return each stage's result as the table at the end shows it."""
    rows = finished.stdout.split("=== stages\n")[1].splitlines()[:-1]
    return {row.split()[0]: row.split(" s  ")[1] for row in rows}


def test_run_sh_adds_up_all_test_stages(project):
    tests = {"unit/test_a.py": PASSES + SKIPS, "parallel/test_b.py": PASSES}
    finished, last = run(project, tests, "unit", "parallel")
    assert last == "2 passed, 0 failed, 1 skipped"
    assert finished.returncode == 0
    assert table(finished) == {"install": "passed", "unit": "passed", "parallel": "passed"}


@pytest.mark.parametrize(("workers", "num_processes"), [(None, 2), ("0", 1)])
def test_run_sh_adds_up_what_ran_beside_each_other(project, workers, num_processes):
    text = "import os, time\ndef test_{0}():\n    open('{1}' + str(os.getpid()), 'w').close()\n    time.sleep(0.5)\n"
    tests = {f"parallel/test_{name}.py": text.format(name, project / "ran-") for name in "abc"}
    tests["parallel/test_d.py"] = PASSES + FAILS + SKIPS + ERRORS
    finished, last = run(project, tests, "parallel", workers=workers)
    assert (finished.returncode, last) == (1, "4 passed, 2 failed, 1 skipped")
    assert len(list(project.glob("ran-*"))) == num_processes


def test_run_sh_after_a_failure_goes_on_and_keeps_the_exit_code(project):
    tests = {"unit/test_a.py": PASSES + FAILS + ERRORS, "parallel/test_b.py": PASSES}
    finished, last = run(project, tests, "unit", "parallel")
    assert last == "2 passed, 2 failed, 0 skipped"
    assert finished.returncode == 1
    assert table(finished) == {"install": "passed", "unit": "FAILED (1)", "parallel": "passed"}


def test_run_sh_without_a_test_in_a_stage_fails(project):
    finished, last = run(project, {"unit/test_a.py": "x = 1\n"}, "unit")
    assert (finished.returncode, last) == (5, "0 passed, 1 failed, 0 skipped")


def test_run_sh_with_a_stage_that_dies_counts_it(project):
    finished, last = run(project, {"unit/test_a.py": "import os\nos._exit(9)\n"}, "unit")
    assert (finished.returncode, last) == (9, "0 passed, 1 failed, 0 skipped")


def test_run_sh_with_a_test_that_ends_its_process_goes_on_and_counts_it(project):
    tests = {"parallel/test_a.py": "import os\ndef test_a():\n    os._exit(9)\n", "parallel/test_b.py": PASSES}
    finished, last = run(project, tests, "parallel", workers=None)
    # pytest-xdist gives such a test to some more processes.
    assert re.fullmatch(r"1 passed, [1-9]\d* failed, 0 skipped", last), finished.output
    assert finished.returncode == 1


def test_run_sh_without_the_folder_of_a_stage_fails(project):
    finished, last = run(project, {}, "examples")
    assert (finished.returncode, last) == (4, "0 passed, 1 failed, 0 skipped")


def test_run_sh_with_a_failed_install_still_tests(project):
    (project / "docker/install.sh").write_text("exit 3\n")
    finished, last = run(project, {"unit/test_a.py": PASSES}, "unit")
    assert (finished.returncode, last) == (3, "1 passed, 0 failed, 0 skipped")


def test_run_sh_with_a_lint_finding_fails(project):
    finished, last = run(project, {"unit/test_a.py": "import os\n"}, "lint")
    assert (finished.returncode, last) == (1, "0 passed, 0 failed, 0 skipped")
    assert table(finished) == {"install": "passed", "lint": "FAILED (1)"}


def test_run_sh_runs_the_contract_once_per_framework(project, monkeypatch):
    monkeypatch.delenv("HVDTRAIN_FRAMEWORKS", raising=False)
    (project / "tests/conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--adapter')\n")
    text = "def test_a(request):\n    assert request.config.getoption('--adapter') == 'torch'\n"
    finished, last = run(project, {"contract/test_a.py": text}, "contract")
    assert last == "1 passed, 1 failed, 0 skipped"
    assert table(finished) == {
        "install": "passed",
        "contract-torch": "passed",
        "contract-tensorflow": "FAILED (1)",
    }


def test_run_sh_takes_a_later_ring_when_its_folder_exists(project):
    finished, last = run(project, {"faults/test_a.py": PASSES}, "faults")
    assert (finished.returncode, last) == (0, "1 passed, 0 failed, 0 skipped")


def test_run_sh_with_an_unknown_stage_is_refused(project):
    finished, _ = run(project, {}, "units")
    assert finished.returncode == 2
    assert finished.stderr == (
        "run.sh: there is no stage 'units', expected some of: lint format types doctests unit contract "
        "parallel examples\n"
    )
    assert finished.stdout == ""
