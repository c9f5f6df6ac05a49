from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from hvdtrain.config import TrainConfig
from hvdtrain.errors import ConfigError
from hvdtrain.job import load_job
from hvdtrain.job_options import GivenOptions

CONFIG = "import hvdtrain\nconfig = hvdtrain.TrainConfig(epochs=2)\n"
DATA = "def train_data():\n    return [1]\n"
TORCH = "def torch_model(): ...\ndef torch_loss(model, batch): ...\n"
TENSORFLOW = "def tensorflow_model(): ...\ndef tensorflow_loss(model, batch): ...\n"


@pytest.fixture(autouse=True)
def unchanged_imports(monkeypatch):
    """Take back what loading a job adds to this process."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("hvdtrain_job_", "neighbour")):
            del sys.modules[name]


def write_job(text, name="job.py"):
    path = Path(name)
    path.write_text(text)
    return path


def message_of(path):
    with pytest.raises(ConfigError) as caught:
        load_job(path)
    return str(caught.value)


def test_load_job_returns_what_the_file_holds():
    path = write_job(CONFIG + DATA + TORCH + "names = {'fc.weight': 'dense/kernel'}\n", "digits.py")
    job = load_job(path)
    assert (job.name, job.path, job.config) == ("digits", path, TrainConfig(epochs=2))
    assert job.digest == hashlib.sha256(path.read_bytes() + b"[]").hexdigest()
    assert job.required("train_data")() == [1]
    assert job.function("eval_data") is None
    assert job.names == {"fc.weight": "dense/kernel"}


def test_names_of_a_job_without_any_are_empty():
    assert load_job(write_job(CONFIG + DATA)).names == {}


def test_job_can_import_its_neighbours():
    write_job("VALUE = 7\n", "neighbour.py")
    job = load_job(write_job("from neighbour import VALUE\n" + CONFIG + "def train_data():\n    return VALUE\n"))
    assert job.required("train_data")() == 7


# ---------------------------------------------------------------- what is refused
def test_missing_file_raises():
    assert (
        message_of(Path("none/job.py"))
        == "job: must be a Python file, got 'none/job.py', which does not exist. Check the path."
    )


def test_missing_file_beside_others_names_them():
    write_job("", "b.py")
    write_job("", "a.py")
    assert message_of(Path("c.py")) == (
        "job: must be a Python file, got 'c.py', which does not exist. Job files there: a.py, b.py."
    )


@pytest.mark.parametrize("given", ["digts.py", "digits", "Digits.py"])
def test_missing_file_of_nearly_the_name_of_another_asks_for_that(given):
    write_job("", "digits.py")
    write_job("", "other.py")
    assert message_of(Path(given)).endswith(f"got {given!r}, which does not exist. Did you mean 'digits.py'?")


def test_folder_with_job_files_names_them():
    Path("jobs").mkdir()
    write_job("", "jobs/a.py")
    assert message_of(Path("jobs")).endswith("got 'jobs', which is a folder. Job files in it: jobs/a.py.")


def test_folder_in_place_of_a_file_raises():
    Path("job").mkdir()
    assert message_of(Path("job")).startswith(
        "job: must be a Python file, got 'job', which is a folder. Check the path."
    )


def test_file_that_is_not_named_py_raises():
    path = write_job(CONFIG + DATA, "job.txt")
    assert message_of(path) == f"job: must be a Python file, got '{path.resolve()}'. Name it with .py."


def test_raising_file_tells_error_and_line():
    path = write_job(CONFIG + "\n\nvalue = {}['key']\n")
    assert message_of(path) == f"{path.resolve()}: must run without an error, got KeyError: 'key' at line 5."


def test_file_that_raises_inside_a_neighbour_tells_its_own_line():
    write_job("def fail():\n    raise OSError('disk')\n", "neighbour.py")
    path = write_job("import neighbour\n" + CONFIG + "neighbour.fail()\n")
    assert message_of(path) == f"{path.resolve()}: must run without an error, got OSError: disk at line 4."


def test_file_with_a_syntax_error_tells_its_line():
    path = write_job(CONFIG + "def (:\n")
    assert message_of(path) == (
        f"{path.resolve()}: must run without an error, got SyntaxError: invalid syntax (job.py, line 3) at line 3."
    )


def test_file_that_misses_a_package_says_so():
    path = write_job("import there_is_no_such_package\n")
    assert message_of(path) == (
        f"{path.resolve()}: must run without an error, got ModuleNotFoundError: "
        "No module named 'there_is_no_such_package' at line 1."
    )


def test_error_of_the_file_is_the_cause():
    with pytest.raises(ConfigError) as caught:
        load_job(write_job("1 / 0\n"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_config_error_of_the_file_stands_as_it_is():
    path = write_job("import hvdtrain\nconfig = hvdtrain.TrainConfig(epochs=0)\n")
    assert message_of(path) == "TrainConfig: epochs must be at least 1, got 0."


@pytest.mark.parametrize(("line", "got"), [("", "no config"), ("config = {'epochs': 1}\n", "dict")])
def test_file_without_config_raises(line, got):
    path = write_job(line + DATA)
    assert message_of(path) == f"job.py: must define config = hvdtrain.TrainConfig(...), got {got}."


@pytest.mark.parametrize("line", ["", "train_data = [1]\n"])
def test_file_without_train_data_raises(line):
    assert (
        message_of(write_job(CONFIG + line))
        == "job.py: must define the function train_data(), got none. Define it in the job file."
    )


@pytest.mark.parametrize("name", ["prepare_data", "eval_data", "augment", "collate", "callbacks"])
def test_optional_part_that_is_no_function_raises(name):
    path = write_job(CONFIG + DATA + f"{name} = [1]\n")
    assert message_of(path) == f"job.py: {name} must be a function, got list."


def test_optional_part_that_is_none_is_absent():
    assert load_job(write_job(CONFIG + DATA + "eval_data = None\n")).function("eval_data") is None


# ---------------------------------------------------------------- frameworks
@pytest.mark.parametrize(
    ("text", "served"),
    [("", []), (TORCH, ["torch"]), (TENSORFLOW, ["tensorflow"]), (TORCH + TENSORFLOW, ["tensorflow", "torch"])],
)
def test_frameworks_are_those_with_model_and_loss(text, served):
    assert load_job(write_job(CONFIG + DATA + text)).frameworks == served


@pytest.mark.parametrize(
    ("text", "wanted", "chosen"),
    [
        (TORCH, None, "torch"),
        (TENSORFLOW, None, "tensorflow"),
        (TORCH + TENSORFLOW, "torch", "torch"),
        (TORCH + TENSORFLOW, "tensorflow", "tensorflow"),
    ],
)
def test_choose_framework_takes_the_wanted_or_the_only_one(text, wanted, chosen):
    assert load_job(write_job(CONFIG + DATA + text)).choose_framework(wanted) == chosen


@pytest.mark.parametrize(
    ("text", "wanted", "message"),
    [
        (TORCH + TENSORFLOW, None, "job.py: serves tensorflow and torch. Choose one with --framework."),
        (
            "",
            None,
            "job.py: must define a model and a loss, got neither torch_model and torch_loss "
            "nor tensorflow_model and tensorflow_loss.",
        ),
        (
            TORCH,
            "tensorflow",
            "job.py: --framework tensorflow needs the functions tensorflow_model and tensorflow_loss, got no "
            "tensorflow_model and no tensorflow_loss. Define them in the job file.",
        ),
        (
            "def torch_model(): ...\n",
            "torch",
            "job.py: --framework torch needs the functions torch_model and torch_loss, got no torch_loss. "
            "Define it in the job file.",
        ),
    ],
)
def test_choose_framework_without_one_to_take_raises(text, wanted, message):
    job = load_job(write_job(CONFIG + DATA + text))
    with pytest.raises(ConfigError) as caught:
        job.choose_framework(wanted)
    assert str(caught.value) == message


def test_the_digest_knows_the_own_options():
    path = write_job("import hvdtrain\nSIZE = hvdtrain.option('size', 1)\n" + CONFIG + DATA)
    digests = {load_job(path, GivenOptions(values)).digest for values in ({}, {"size": "1"}, {"size": "2"})}
    assert len(digests) == 2
