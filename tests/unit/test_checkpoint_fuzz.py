"""Damaged checkpoints: refused with a CheckpointError, or read with the very arrays that were written."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from hvdtrain.checkpoint import commit, load
from hvdtrain.errors import CheckpointError
from hvdtrain.portable import PortableState
from hvdtrain.resume import ResumeRequest

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors")
STATE = PortableState(
    {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.array([0.5], dtype=np.float64)},
    {"w/exp_avg": np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)},
    {"tied": "w"},
)
MANIFEST = {
    "counters": {"epoch": 2, "step_in_epoch": 1, "global_step": 4, "samples_seen": 14},
    "config": {"learning_rate": 0.05, "betas": [0.9, 0.999]},
    **{name: {} for name in ("data", "ledgers", "patience", "plan", "recorder")},
    "eval_row": None,
}
VALUES = [
    None,
    True,
    0,
    -1,
    10**30,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "../x",
    "/etc/passwd",
    [],
    [1],
    {},
    {"a": 1},
]


def arrays_of(state):
    tensors = {**state.weights, **state.slots}
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in tensors.items()}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return commit(tmp_path_factory.mktemp("original"), 4, STATE, MANIFEST)


# ---------------------------------------------------------------- damage to bytes
def flip(data, generator):
    place = generator.randrange(len(data))
    data[place] ^= 1 << generator.randrange(8)


def overwrite(data, generator):
    place = generator.randrange(len(data))
    data[place : place + 8] = generator.randbytes(8)


def cut(data, generator):
    del data[generator.randrange(len(data)) :]


def grow(data, generator):
    place = generator.randrange(len(data) + 1)
    data[place:place] = generator.choice([b"\0" * 16, b" ", b"\n", generator.randbytes(5), bytes(data)])


def remove_middle(data, generator):
    start = generator.randrange(len(data))
    del data[start : start + generator.randrange(1, 64)]


def swap(path, generator):
    """Put one file of the checkpoint in place of another."""
    source, target = generator.sample(FILES, 2)
    shutil.copy(path / source, path / target)


def take_away(path, generator):
    name = generator.choice(FILES)
    (path / name).unlink()
    if generator.random() < 0.5:
        (path / name).mkdir()


# ---------------------------------------------------------------- damage to the manifest's meaning
def places_of(value, path=()):
    """Yield the path of every value of a manifest, the manifest itself left out."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places_of(inner, (*path, key))


def edit(path, generator):
    """Change, remove, add or rename one value anywhere in the manifest."""
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    *outer, key = generator.choice(list(places_of(manifest)))
    holder = manifest
    for step in outer:
        holder = holder[step]
    kind = generator.choice(["set", "remove", "rename", "path"])
    if kind == "set":
        holder[key] = generator.choice(VALUES)
    elif kind == "remove":
        del holder[key]
    elif kind == "rename" and isinstance(holder, dict):
        holder[generator.choice(["../x", "x", ""])] = holder.pop(key)
    else:
        manifest["files"][generator.choice(["../x", "/etc/passwd", "model.safetensors/.."])] = {"bytes": 1}
    file.write_text(json.dumps(manifest))


def replace(path, generator):
    text = generator.choice(["", "null", "[]", "1", '"x"', "{}", '{"format": 1}', "[" * 100_000, "\ufeff{}", "{" * 5])
    (path / "manifest.json").write_text(text)


BYTES = [flip, overwrite, cut, grow, remove_middle]
WHOLE = [swap, take_away, edit, edit, edit, replace]


def damage(path, generator):
    action = generator.choice([*BYTES, *BYTES, *WHOLE])
    if action in WHOLE:
        action(path, generator)
        return action.__name__
    file = path / generator.choice(FILES)
    data = bytearray(file.read_bytes())
    action(data, generator)
    file.write_bytes(data)
    return f"{action.__name__} {file.name}"


@pytest.mark.parametrize("seed", range(10))
def test_damaged_checkpoint_is_refused_or_read_as_it_was_written(original, seed):
    generator, expected, refused = random.Random(seed), arrays_of(STATE), 0  # noqa: S311 - damage is no secret
    for number in range(50):
        path = Path(f"{number}") / original.name
        shutil.copytree(original, path)
        what = damage(path, generator)
        try:
            found = load(path)
            ResumeRequest(path=path).find(None)
        except CheckpointError:
            refused += 1
            continue
        assert (arrays_of(found.state), found.state.aliases) == (expected, {"tied": "w"}), (number, what)
        assert {name: found.manifest[name] for name in MANIFEST} == MANIFEST, (number, what)
    # Spaces between the values of a manifest change nothing, but most damage must be seen.
    assert refused >= 40


def test_undamaged_checkpoint_is_read(original):
    found = load(original)
    assert (arrays_of(found.state), found.state.aliases) == (arrays_of(STATE), {"tied": "w"})


@pytest.mark.parametrize("name", FILES[1:])
def test_every_byte_of_a_tensor_file_counts(original, name):
    shutil.copytree(original, original.name)
    file = Path(original.name) / name
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CheckpointError):
            load(Path(original.name))


@pytest.mark.parametrize("counters", [{}, {"global_step": None}, {"global_step": "x"}, {"global_step": []}, [], "x", 3])
def test_manifest_with_odd_counters_that_its_writer_gave_is_read_or_refused(counters):
    path = commit(Path("odd"), 4, STATE, {**MANIFEST, "counters": counters})
    assert arrays_of(load(path).state) == arrays_of(STATE)
