from __future__ import annotations

import subprocess
import sys

import pytest

from hvdtrain import registry
from hvdtrain.errors import AdapterError
from hvdtrain.registry import claim, load_trainer


@pytest.fixture(autouse=True)
def unclaimed(monkeypatch):
    """Begin as a fresh process does."""
    monkeypatch.setattr(registry, "_claimed", None)


def test_claim_of_a_second_framework_raises_with_both_reasons():
    claim("torch", "TorchTrainer was imported")
    with pytest.raises(AdapterError) as caught:
        claim("tensorflow", "the job file asked for it")
    assert str(caught.value) == (
        "claim: this process already uses 'torch' (TorchTrainer was imported), so it cannot use 'tensorflow' "
        "(the job file asked for it). Start a second process for the other framework."
    )


def test_claim_of_the_same_framework_keeps_the_first_reason():
    claim("torch", "first")
    claim("torch", "second")
    with pytest.raises(AdapterError, match=r"'torch' \(first\)"):
        claim("tensorflow", "third")


def test_refused_claim_leaves_the_process_to_the_first():
    claim("torch", "first")
    with pytest.raises(AdapterError):
        claim("tensorflow", "second")
    claim("torch", "third")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("pytorch", " Did you mean 'torch'?"),
        ("Torch", " Did you mean 'torch'?"),
        ("tensorfow", " Did you mean 'tensorflow'?"),
        ("jax", ""),
        ("", ""),
    ],
)
def test_load_trainer_of_an_unknown_framework_raises(name, hint):
    with pytest.raises(AdapterError) as caught:
        load_trainer(name)
    assert str(caught.value) == (
        f"load_trainer: unknown framework {name!r}, expected one of 'tensorflow', 'torch'.{hint}"
    )


@pytest.mark.parametrize("name", ["torch", "tensorflow"])
def test_load_trainer_without_the_framework_raises(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(AdapterError) as caught:
        load_trainer(name)
    assert str(caught.value) == (
        f"load_trainer: {name!r} needs the package {name}, got none. "
        f"Run 'HVDTRAIN_FRAMEWORKS={name} bash docker/install.sh', which installs and builds both."
    )


def make_package(folder, name, text=""):
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(text)


def test_load_trainer_without_horovod_raises(monkeypatch, tmp_path):
    make_package(tmp_path, "torch")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "horovod", None)
    with pytest.raises(AdapterError) as caught:
        load_trainer("torch")
    assert str(caught.value) == (
        "load_trainer: 'torch' needs the package horovod, got none. "
        "Run 'HVDTRAIN_FRAMEWORKS=torch bash docker/install.sh', which installs and builds both."
    )


LOAD = """
import sys
sys.path.insert(0, sys.argv[2])
from hvdtrain.errors import AdapterError
from hvdtrain.registry import load_trainer
try:
    load_trainer(sys.argv[1])
except AdapterError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["torch", "tensorflow"])
def test_load_trainer_with_a_horovod_built_without_it_raises(tmp_path, request, name):
    # A process of its own, because what a failed import leaves behind cannot be taken back.
    for package in ("torch", "tensorflow"):
        make_package(tmp_path, package)
    make_package(tmp_path, "horovod")
    make_package(tmp_path, f"horovod/{name}", "raise ImportError('no binding')")
    finished = subprocess.run(
        [sys.executable, "-c", LOAD, name, str(tmp_path)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(request.config.rootpath)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (finished.stderr, finished.returncode) == ("", 0)
    assert finished.stdout == (
        f"load_trainer: {name!r} needs {name} and horovod built for it, got ImportError: no binding. "
        f"Run 'HVDTRAIN_FRAMEWORKS={name} bash docker/install.sh', which installs and builds both.\n"
    )
