"""The rules in tests/conftest.py, proven on a small project that breaks them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.harness import Finished, run_command

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path):
    """A project with this one's settings and harness and no tests."""
    shutil.copy(PROJECT / ".pytest.ini", tmp_path)
    shutil.copytree(PROJECT / "tests/harness", tmp_path / "tests/harness")
    for name in ("__init__.py", "conftest.py"):
        shutil.copy(PROJECT / "tests" / name, tmp_path / "tests")
    return tmp_path


def run_pytest(project: Path, files: dict[str, str], *arguments: str, require: str | None = None) -> Finished:
    for name, text in files.items():
        path = project / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "--color=no", *(arguments or ["tests"])]
    return run_command(command, timeout_s=40, cwd=project, env={"HVDTRAIN_REQUIRE": require})


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("import os; os.environ['LEFT'] = '1'", "changed these environment variables: ['LEFT']"),
        ("import os; del os.environ['HOME']", "changed these environment variables: ['HOME']"),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(4,), name='left').start()",
            "left these threads running: ['left']",
        ),
        ("import warnings; warnings.warn('careless')", "UserWarning: careless"),
    ],
)
def test_unit_test_that_leaves_something_fails(project, body, complaint):
    finished = run_pytest(project, {"unit/test_x.py": f"def test_x():\n    {body}\n"})
    assert finished.returncode == 1
    assert complaint in finished.output


def test_unit_test_past_the_limit_fails(project):
    conftest = project / "tests/conftest.py"
    conftest.write_text(conftest.read_text().replace("LIMIT_S = 60\n", "LIMIT_S = 1\n"))
    finished = run_pytest(project, {"unit/test_x.py": "import time\ndef test_x():\n    time.sleep(30)\n"})
    assert finished.returncode == 1
    assert "the test takes longer than 1 s" in finished.output
    assert finished.seconds < 20


def test_unit_test_starts_in_its_own_folder_with_the_same_seeds(project):
    text = (
        "import random, numpy\nfrom pathlib import Path\n"
        "def test_x(tmp_path, monkeypatch):\n"
        "    monkeypatch.setenv('GONE_AGAIN', '1')\n"
        "    assert Path.cwd() == tmp_path\n"
        "    assert (random.random(), numpy.random.rand()) == (random.Random(0).random(), 0.5488135039273248)\n"
    )
    finished = run_pytest(project, {"unit/test_x.py": text, "contract/test_x.py": text})
    assert finished.returncode == 0, finished.output
    assert "2 passed" in finished.stdout


def test_order_is_drawn_from_the_seed(project, monkeypatch):
    tests = {"unit/test_x.py": "\n".join(f"def test_{i}():\n    pass\n" for i in range(9))}

    def order(seed: str) -> list[str]:
        monkeypatch.setenv("HVDTRAIN_TEST_SEED", seed)
        output = run_pytest(project, tests, "-vv", "tests").stdout
        return [line.split()[0] for line in output.splitlines() if "PASSED" in line]

    assert order("1") == order("1")
    assert order("1") != order("2")
    assert sorted(order("1")) == sorted(order("2")) != []


#: Two tests that each hold when the other one runs at the same time.
PAIR = """
import time
import pytest

def meet(folder, own, other):
    (folder / own).touch()
    deadline = time.monotonic() + 2
    while not (folder / other).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (folder / other).exists()
    time.sleep(0.5)

{marker}
def test_first(shared_folder, request):
    request.addfinalizer((shared_folder / "first").unlink)
    meet(shared_folder, "first", "second")

def test_second(shared_folder, request):
    request.addfinalizer((shared_folder / "second").unlink)
    meet(shared_folder, "second", "first")
"""


@pytest.mark.parametrize(("marker", "verdict"), [("", "2 passed"), ("@pytest.mark.alone", "2 failed")])
def test_marked_test_runs_alone_and_others_beside_each_other(project, marker, verdict):
    finished = run_pytest(project, {"parallel/test_x.py": PAIR.format(marker=marker)}, "-n", "2", "tests")
    assert verdict in finished.stdout


@pytest.mark.parametrize("seed", ["", "0", "5"])
def test_processes_beside_each_other_have_one_order(project, monkeypatch, seed):
    # Where they differ, pytest-xdist refuses to begin.
    monkeypatch.setenv("HVDTRAIN_TEST_SEED", seed)
    tests = {"unit/test_x.py": "\n".join(f"def test_{i}():\n    pass\n" for i in range(9))}
    finished = run_pytest(project, tests, "-n", "2", "tests")
    assert "9 passed" in finished.stdout, finished.output


#: Tests that say in which process they ran.
SAYS = """
import os
import pytest

@pytest.mark.parametrize("number", range(6))
def test_x(number):
    print("ran in", os.environ["PYTEST_XDIST_WORKER"])
"""


@pytest.mark.parametrize(("file", "num_processes"), [("parity/test_x.py", 1), ("parallel/test_x.py", 2)])
def test_tests_of_one_group_run_in_one_process(project, file, num_processes):
    finished = run_pytest(project, {file: SAYS}, "-n", "2", "-rP", "tests")
    ran_in = [line for line in finished.stdout.splitlines() if line.startswith("ran in")]
    assert len(ran_in) == 6, finished.output
    assert len(set(ran_in)) == num_processes


def test_what_is_long_starts_first_however_few_its_tests(project):
    files = {"parallel/test_launchers.py": SAYS, "parallel/test_watchdog.py": "def test_x():\n    print('long')\n"}
    finished = run_pytest(project, files, "-n", "1", "-vv", "tests")
    ran = [line for line in finished.stdout.splitlines() if "PASSED" in line]
    assert len(ran) == 7, finished.output
    assert "test_watchdog.py" in ran[0]


RANKED = {
    "parallel/ranked/test_r.py": "def test_r():\n    pass\n",
    "parallel/test_d.py": "def test_d():\n    pass\n",
}


def test_plain_run_leaves_ranked_files_alone(project):
    assert "1 passed" in run_pytest(project, RANKED, "tests/parallel").stdout


def test_run_with_the_rank_plugin_takes_ranked_files(project):
    plugin = ("-p", "tests.harness.rank_plugin")
    assert "1 passed" in run_pytest(project, RANKED, *plugin, "tests/parallel/ranked/test_r.py").stdout


ADAPTER = {"contract/test_a.py": "def test_a(adapter):\n    pass\n"}


@pytest.mark.parametrize(("require", "verdict"), [(None, "1 skipped"), ("torch", "1 error")])
def test_contract_without_an_adapter(project, require, verdict):
    finished = run_pytest(project, ADAPTER, "tests", require=require)
    assert verdict in finished.stdout
    assert "needs --adapter with one of torch, tensorflow" in finished.stdout


def test_contract_with_an_unknown_adapter_is_refused(project):
    finished = run_pytest(project, ADAPTER, "tests", "--adapter", "jax")
    assert finished.returncode == 4
    assert "argument --adapter: invalid choice: 'jax'" in finished.stderr


def test_unknown_marker_is_refused(project):
    text = "import pytest\n@pytest.mark.rank(2)\ndef test_x():\n    pass\n"
    assert "'rank' not found in `markers`" in run_pytest(project, {"unit/test_x.py": text}).stdout
