from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from hvdtrain import tensor_file
from hvdtrain.errors import CheckpointError
from hvdtrain.tensor_file import has_digest, iter_tensors, read_tensors, write_tensors

TYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
TYPES += ["float16", "float32", "float64", "complex64"]
ODD = {
    "b.10": np.zeros((0, 3), np.float32),
    "b.2": np.array(1.5, np.float32),
    'quote " back \\ line \n tab \t é \x01': np.ones(3, np.float16),
    "a": np.arange(5, dtype=np.int64),
}


def ignore(count):
    pass


def write(path, tensors):
    facts = write_tensors(path, tensors, ignore)
    assert facts == {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
    return facts


def tensors_of_all_types():
    types = {name: np.dtype(name) for name in TYPES}
    if find_spec("ml_dtypes"):  # TensorFlow brings it
        types["bfloat16"] = np.dtype(__import__("ml_dtypes").bfloat16)
    return {**{f"w.{name}": np.arange(7).astype(dtype) for name, dtype in types.items()}, **ODD}


@pytest.mark.parametrize("tensors", [{}, ODD, tensors_of_all_types()], ids=["none", "odd", "all types"])
def test_file_is_the_librarys_to_the_byte(tmp_path, tensors):
    write(tmp_path / "ours", tensors)
    assert (tmp_path / "ours").read_bytes() == save(tensors)


def test_library_reads_what_was_written(tmp_path):
    tensors = tensors_of_all_types()
    facts = write(tmp_path / "ours", tensors)
    for found in (load_file(tmp_path / "ours"), read_tensors(tmp_path / "ours", facts)):
        assert sorted(found) == sorted(tensors)
        for name, array in tensors.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            assert found[name].tobytes() == array.tobytes()


def test_strides_and_byte_order_of_memory_do_not_reach_the_file(tmp_path):
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    odd = {"t": base.T, "s": base[:, ::-2], "big": base.astype(">f4"), "f": np.asfortranarray(base)}
    write(tmp_path / "ours", odd)
    found = load_file(tmp_path / "ours")
    assert {name: array.tolist() for name, array in found.items()} == {n: a.tolist() for n, a in odd.items()}


def test_pieces_are_told_of_and_synced_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_file, "_PIECE", 100)
    monkeypatch.setattr(tensor_file, "_SYNC", 1000)
    told, synced = [], []
    sync = os.fsync
    monkeypatch.setattr(tensor_file.os, "fsync", lambda handle: (synced.append(sum(told)), sync(handle)))
    facts = write_tensors(tmp_path / "ours", {"w": np.arange(1000, dtype=np.float32)}, told.append)
    assert sum(told) == facts["bytes"]
    assert max(told) == 100
    assert [later - earlier for earlier, later in pairwise(synced)][:3] == [1000, 1000, 1000]
    assert synced[-1] == facts["bytes"]
    assert load_file(tmp_path / "ours")["w"].tolist() == list(range(1000))


@pytest.mark.parametrize("array", [np.array(["x"], dtype=object), np.zeros(1, np.complex128), np.array([b"abc"])])
def test_dtype_of_no_file_raises(tmp_path, array):
    with pytest.raises(CheckpointError) as caught:
        write_tensors(tmp_path / "ours", {"a": np.zeros(1), "w": array}, ignore)
    assert str(caught.value) == (
        f"commit: a tensor must be of a dtype that safetensors holds, got {array.dtype.name} for 'w'. Convert it, or "
        "leave it out of the model's state."
    )


def test_file_that_is_there_is_not_written_over(tmp_path):
    (tmp_path / "ours").write_text("x")
    with pytest.raises(FileExistsError):
        write_tensors(tmp_path / "ours", {}, ignore)


@pytest.mark.parametrize("damage", [lambda data: data + b"\0", lambda data: data[:-1], lambda data: data[:-1] + b"\1"])
def test_digest_and_size_are_compared(tmp_path, damage):
    file = tmp_path / "ours"
    facts = write(file, {"w": np.zeros(2)})
    assert has_digest(file, facts)
    file.write_bytes(damage(file.read_bytes()))
    assert not has_digest(file, facts)
    with pytest.raises(CheckpointError) as caught:
        read_tensors(file, facts)
    assert str(caught.value) == f"load: {file} does not match its digest in the manifest."


def test_file_of_another_size_is_not_read(tmp_path):
    file = tmp_path / "ours"
    facts = write(file, {"w": np.zeros(2)})
    os.truncate(file, 1 << 40)  # reading it would take far longer than a test may
    assert not has_digest(file, facts)


def test_iter_tensors_yields_one_after_the_other(tmp_path):
    facts = write(tmp_path / "ours", ODD)
    found = dict(iter_tensors(tmp_path / "ours", facts))
    assert {name: array.tobytes() for name, array in found.items()} == {n: a.tobytes() for n, a in ODD.items()}


def test_iter_tensors_of_another_size_raises(tmp_path):
    file = tmp_path / "ours"
    facts = write(file, ODD)
    with pytest.raises(CheckpointError) as caught:
        list(iter_tensors(file, {**facts, "bytes": 1}))
    assert str(caught.value) == f"load: {file} is not as large as its manifest says. Use an older checkpoint."
