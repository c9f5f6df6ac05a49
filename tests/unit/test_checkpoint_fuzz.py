"""Damaged checkpoints: refused with a CheckpointError, or read with the very arrays that were written."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from hvdtrain.checkpoint import commit, load
from hvdtrain.errors import CheckpointError, HvdTrainError
from hvdtrain.portable import PortableState
from hvdtrain.resume import ResumeRequest
from tests.unit.numpy_trainer import make_samples
from tests.unit.resuming import kill_at, resumed

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors")
STATE = PortableState(
    {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.array([0.5], dtype=np.float64)},
    {"w/exp_avg": np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)},
    {"tied": "w"},
)
MANIFEST = {
    "counters": {"epoch": 2, "step_in_epoch": 1, "global_step": 4, "samples_seen": 14},
    "config": {"learning_rate": 0.05, "betas": [0.9, 0.999]},
    "size": 2,
    "plan": {"sizes": {"global_batch_size": 4}, "total_samples": 20},
    "data": {"kind": "indexed", "num_samples": 10, "ledger_digest": [4, 1 << 63, 7]},
    "patience": {"factor": 1.0, "best": None, "since_best": 0, "since_drop": 0},
    "recorder": {"window": [[0.0, 0.0]], "epoch": [[2.5, 4.0]]},
    "ledgers": {"train": None, "eval": None},
    "eval_row": {"global_step": 3, "loss": 0.5},
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


def seal(path, generator):
    """Change a value as :func:`edit` does, and give the manifest the digest of what it then says."""
    edit(path, generator)
    file = path / "manifest.json"
    values = json.loads(file.read_text())
    values.pop("digest", None)
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps({**values, "digest": digest}))


def link(path, generator):
    """Put a link to a file that is elsewhere, and whole, in the place of one."""
    name = generator.choice(FILES)
    elsewhere = path.parent / name
    (path / name).rename(elsewhere)
    (path / name).symlink_to(elsewhere.resolve())


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
WHOLE = [swap, take_away, link, edit, edit, edit, replace]


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


def test_manifest_that_is_sealed_again_is_refused_or_read(original):
    """Whoever seals a manifest may say what they like of their own run; the tensors stay those of the files."""
    generator, refused = random.Random(0), []  # noqa: S311 - damage is no secret
    for number in range(200):
        path = Path(f"{number}") / original.name
        shutil.copytree(original, path)
        seal(path, generator)
        try:
            found = load(path)
            ResumeRequest(path=path).find(None)
        except CheckpointError as error:
            refused.append(str(error))
            continue
        assert arrays_of(found.state) == arrays_of(STATE), number
    assert 20 <= len(refused) <= 180
    assert max(map(len, refused)) < 400


@pytest.mark.usefixtures("after_fit")
def test_run_goes_on_from_a_manifest_that_is_sealed_again_or_refuses_it():
    settings = {"run_dir": "run", "epochs": 3, "save_every_steps": 4}
    kill_at(5, make_samples(10), eval_data=make_samples(4), **settings)
    shutil.move("run", "killed")
    generator, ended = random.Random(1), 0  # noqa: S311 - damage is no secret
    for _ in range(60):
        shutil.rmtree("run", ignore_errors=True)
        shutil.copytree("killed", "run")
        seal(Path("run/checkpoints/step-00000004"), generator)
        with suppress(HvdTrainError):
            resumed(**settings).fit(make_samples(10), make_samples(4))
            ended += 1
    assert 6 <= ended <= 54


def test_undamaged_checkpoint_is_read(original):
    found = load(original)
    assert ResumeRequest(path=original).find(None).path == original
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


@pytest.mark.parametrize("counters", [{}, {"global_step": 4}])
def test_manifest_that_lacks_counters_is_read(counters):
    path = commit(Path("odd"), 4, STATE, {**MANIFEST, "counters": counters})
    assert arrays_of(load(path).state) == arrays_of(STATE)


@pytest.mark.parametrize("counters", [{"global_step": None}, {"global_step": "x"}, {"global_step": []}, [], "x", 3])
def test_manifest_with_odd_counters_that_its_writer_gave_is_refused(counters):
    path = commit(Path("odd"), 4, STATE, {**MANIFEST, "counters": counters})
    with pytest.raises(CheckpointError, match="load: counters must be "):
        load(path)
