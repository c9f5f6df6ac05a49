from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import pytest

import hvdtrain
from hvdtrain.versions import installed_versions
from tests.unit.fresh_process import run_fresh


def from_metadata(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "not installed"


def test_versions_of_torch_come_from_metadata():
    assert installed_versions("torch") == {
        "python": platform.python_version(),
        "hvdtrain": hvdtrain.__version__,
        "torch": from_metadata("torch"),
        "horovod": from_metadata("horovod"),
        "numpy": np.__version__,
    }


def test_versions_of_tensorflow_name_whichever_distribution_is_there():
    found = installed_versions("tensorflow")
    assert list(found) == ["python", "hvdtrain", "tensorflow", "keras", "horovod", "numpy"]
    assert found["tensorflow"] == from_metadata("tensorflow", "tensorflow-cpu", "tensorflow-gpu")
    assert found["keras"] == from_metadata("keras")


@pytest.mark.parametrize(
    ("distribution", "expected"), [("tensorflow_cpu", "9.8.7"), ("tensorflow_gpu", "9.8.7"), ("other", "not installed")]
)
def test_versions_of_tensorflow_read_this_distribution(monkeypatch, tmp_path, distribution, expected):
    information = tmp_path / f"{distribution}-9.8.7.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 9.8.7\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed_versions("tensorflow")["tensorflow"] == expected


IMPORTED = """
import sys
from hvdtrain.versions import installed_versions
installed_versions("torch"), installed_versions("tensorflow")
print(sorted({"torch", "tensorflow", "keras", "horovod", "numpy"} & set(sys.modules)))
"""


def test_versions_import_nothing():
    assert run_fresh(IMPORTED) == ("[]\n", "")
