"""``hvdtrain inspect``: what it reads, what it prints, and what it says of a damaged or hostile checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from hvdtrain.checkpoint import commit
from hvdtrain.errors import CheckpointError
from hvdtrain.inspection import SlotFacts, find_checkpoint, inspect_checkpoint, tensor_facts
from hvdtrain.portable import PortableState
from tests.harness import run_command

PROJECT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
MANIFEST = {
    "framework": "torch",
    "size": 2,
    "versions": {"python": "3.11.7", "hvdtrain": "0.1.0", "torch": "2.13.0+cpu"},
    "notes": ["dropout", "batch norm"],
    "counters": {"epoch": 3, "step_in_epoch": 5, "global_step": 42, "samples_seen": 2688},
    "config": {"optimizer": "adamw", "learning_rate": 0.001, "seed": 0, "betas": [0.9, 0.999]},
}
STATE = PortableState(
    {
        "layers.10.weight": np.array([[3.0, 4.0]], np.float32),
        "layers.2.weight": np.array([np.nan, 1.0, -np.inf, 1.0], np.float32),
        "mask": np.array([True, False, True]),
        "count": np.array(7),
        "empty": np.zeros((0, 4), np.float16),
    },
    {
        **{f"{name}/exp_avg": np.full(4, 2.0, np.float32) for name in ("layers.10.weight", "layers.2.weight")},
        "layers.10.weight/step": np.array(42.0, np.float32),
        "layers.2.weight/step": np.array(40.0, np.float32),
    },
    {"head.weight": "layers.10.weight"},
)


@pytest.fixture
def run(tmp_path):
    """A run folder with two checkpoints; the newest is the one above."""
    commit(tmp_path / "run/checkpoints", 41, PortableState({"old": np.zeros(1)}), MANIFEST)
    commit(tmp_path / "run/checkpoints", 42, STATE, MANIFEST)
    return tmp_path / "run"


def inspect(*arguments, columns="100"):
    command = [str(BIN / "hvdtrain"), "inspect", *map(str, arguments)]
    return run_command(command, timeout_s=50, env={"COLUMNS": columns, "PYTHONPATH": str(PROJECT)})


# ---------------------------------------------------------------- what is read
@pytest.mark.parametrize("name", [".", "checkpoints", "checkpoints/step-00000042"])
def test_newest_checkpoint_of_a_run_is_taken(run, name):
    assert find_checkpoint(run / name) == run / "checkpoints/step-00000042"


@pytest.mark.parametrize("name", ["none", "notes", "notes/file"])
def test_folder_without_a_checkpoint_raises(tmp_path, name):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/file").write_text("")
    with pytest.raises(CheckpointError) as caught:
        inspect_checkpoint(tmp_path / name, verify=False)
    assert str(caught.value) == (
        f"inspect: {tmp_path / name} must be a checkpoint, or a run folder with one, got neither. Look for step-*."
    )


def test_weights_are_sorted_with_norm_of_finite_values(run):
    found = inspect_checkpoint(run, verify=False)
    assert [(t.name, t.dtype, t.shape, t.num_nonfinite) for t in found.weights] == [
        ("count", "int64", (), 0),
        ("empty", "float16", (0, 4), 0),
        ("layers.2.weight", "float32", (4,), 2),
        ("layers.10.weight", "float32", (1, 2), 0),
        ("mask", "bool", (3,), 0),
    ]
    assert [t.norm for t in found.weights] == pytest.approx([7.0, 0.0, 2**0.5, 5.0, 2**0.5])


def test_slots_are_grouped_by_name(run):
    assert inspect_checkpoint(run, verify=False).slots == [
        SlotFacts("exp_avg", "float32", 2, 8, pytest.approx(32**0.5), 0, None, None),
        SlotFacts("step", "float32", 2, 2, pytest.approx((42**2 + 40**2) ** 0.5), 0, 40.0, 42.0),
    ]


@pytest.mark.parametrize(
    ("array", "norm", "num_nonfinite"),
    [
        (np.full(3_000_000, 2.0, np.float32), 2.0 * 3_000_000**0.5, 0),
        (np.array([3 + 4j, np.nan]), 5.0, 1),
        (np.array([-300, 400], np.int16), 500.0, 0),
        (np.array([1e300, 1e300]), np.inf, 0),
        (np.array([60_000.0] * 4, np.float16), 120_000.0, 0),
    ],
)
def test_norm_is_taken_in_double_precision(array, norm, num_nonfinite):
    facts = tensor_facts("w", array)
    assert (facts.norm, facts.num_nonfinite) == (pytest.approx(norm), num_nonfinite)


def test_digests_are_read_when_asked_for(run):
    file = run / "checkpoints/step-00000042/model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    found = inspect_checkpoint(run, verify=False)
    assert ([facts.digest for facts in found.files], found.damaged) == (["not checked"] * 2, [])
    found = inspect_checkpoint(run, verify=True)
    assert [facts.digest for facts in found.files] == ["DAMAGED", "matches"]
    assert (found.damaged, found.weights, len(found.slots)) == (["model.safetensors"], [], 2)


@pytest.mark.parametrize("verify", [False, True])
def test_file_of_another_size_is_seen_without_its_digest(run, verify):
    file = run / "checkpoints/step-00000042/optimizer.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    if verify:
        assert inspect_checkpoint(run, verify=True).damaged == ["optimizer.safetensors"]
        return
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors is not as large as its manifest says"):
        inspect_checkpoint(run, verify=False)


# ---------------------------------------------------------------- what is printed
WORDS = [
    "run/checkpoints/step-00000042",
    "torch x 2",
    "3, 5 steps into it",
    "2,688",
    "python 3.11.7, hvdtrain 0.1.0, torch 2.13.0+cpu",
    "optimizer adamw, learning_rate 0.001, seed 0",
    "dropout, batch norm",
    "head.weight = layers.10.weight",
    "layers.10.weight",
    "1 x 2",
    "0 x 4",
    "scalar",
    "1.41421",
    "exp_avg",
    "40 to 42",
    "5 tensors of weights and buffers, 10 values",
]


@pytest.mark.parametrize(("options", "state"), [((), "not checked"), (("--verify",), "matches")])
def test_command_prints_what_a_checkpoint_holds(run, options, state):
    finished = inspect(run.relative_to(Path.cwd()), *options)
    assert finished.returncode == 0, finished.output
    assert [word for word in WORDS if word not in finished.stdout] == []
    assert finished.stdout.count(state) >= 2
    assert max(map(len, finished.stdout.splitlines())) <= 100


def test_command_tells_of_damage_and_exits_with_2(run):
    path = run / "checkpoints/step-00000042"
    for name in ("model.safetensors", "optimizer.safetensors"):
        data = (path / name).read_bytes()
        (path / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    finished = inspect(run, "--verify")
    assert finished.returncode == 2
    assert finished.stderr == (
        "hvdtrain: error: inspect: every file must match its digest, got model.safetensors and optimizer.safetensors "
        f"of {path} that does not. Use an older checkpoint.\n"
    )
    assert finished.stdout.count("DAMAGED") == 2


def test_command_on_a_torn_manifest_exits_with_2(run):
    (run / "checkpoints/step-00000042/manifest.json").write_text("{")
    finished = inspect(run)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr.startswith("hvdtrain: error: load: ")


def test_command_prints_names_of_strangers_as_plain_text(tmp_path):
    name = "\x1b[2J[bold]w[/bold]" + "long" * 100
    path = commit(
        tmp_path, 1, PortableState({name: np.ones(1)}), {"framework": "[red]\x1b]0;x\x07", "notes": ["n" * 900]}
    )
    finished = inspect(path)
    assert finished.returncode == 0, finished.output
    assert "\x1b" not in finished.output
    assert "\x07" not in finished.output
    assert "?[2J[bold]w[/bold]long" in finished.stdout
    assert max(map(len, finished.stdout.splitlines())) <= 100


def test_command_needs_neither_framework_nor_mpi(run):
    modules = "torch", "tensorflow", "keras", "horovod", "mpi4py"
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({modules}))\n"
        f"sys.argv = ['hvdtrain', 'inspect', {str(run)!r}, '--verify']\n"
        "from hvdtrain.cli.main import run; run()"
    )
    finished = run_command([sys.executable, "-c", code], timeout_s=50, env={"PYTHONPATH": str(PROJECT)})
    assert finished.returncode == 0, finished.output
    assert "layers.10.weight" in finished.stdout


def test_inspected_checkpoint_is_left_as_it_was(run):
    shutil.copytree(run, "before")
    inspect_checkpoint(run, verify=True)
    for path in Path("before").rglob("*"):
        other = run / path.relative_to("before")
        assert other.is_dir() or other.read_bytes() == path.read_bytes()
    assert json.loads((run / "checkpoints/step-00000042/manifest.json").read_text())["format"] == 1
