"""Checkpoints as a stranger would make them, each opened under a limit of memory; a program for the test beside it.

Every digest is right, unless the case is about files: only what a case changes is wrong. One JSON line a case tells
what opening it in each way led to.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import resource
import shutil
import socket
import stat
import struct
import time
from pathlib import Path

import numpy as np

from hvdtrain import checkpoint
from hvdtrain.errors import CheckpointError
from hvdtrain.inspection import inspect_checkpoint
from hvdtrain.portable import PortableState
from hvdtrain.resume import ResumeRequest

#: What opening any of them may take beyond what the process has.
EXTRA_BYTES = 512 << 20
ORIGINAL = Path("original/checkpoints/step-00000004")
EVIL = Path("evil/checkpoints/step-00000004")
MODEL, MANIFEST = "model.safetensors", "manifest.json"
F32 = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def make_original():
    parts = {
        "config": {},
        "size": 1,
        "plan": {"sizes": {"global_batch_size": 4}, "total_samples": None},
        "data": {"kind": "stream", "num_shards": 2, "consumed": [3, 4]},
        "patience": {"factor": 1.0, "best": 0.5, "since_best": 0, "since_drop": 0},
        "recorder": {"window": [[0.0, 0.0]], "epoch": [[2.5, 4.0]]},
        "ledgers": {"train": None, "eval": None},
    }
    counters = {"epoch": 2, "step_in_epoch": 1, "global_step": 4, "samples_seen": 14}
    state = PortableState({"w": np.ones(4, np.float32)}, {"w/m": np.ones(4, np.float32)}, {"tied": "w"})
    checkpoint.commit(ORIGINAL.parent, 4, state, {**parts, "counters": counters, "eval_row": None})


def sealed(values):
    """Return the text of a manifest with the right digest."""
    values = {name: value for name, value in values.items() if name != "digest"}
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    return json.dumps({**values, "digest": digest})


def manifest(**changes):
    def make():
        values = json.loads((EVIL / MANIFEST).read_text())
        (EVIL / MANIFEST).write_text(sealed({**values, **changes}))

    return make


def text(content):
    return lambda: (EVIL / MANIFEST).write_text(content)


def tensors(header, data=b"", length=None):
    """A case of another model file, which the manifest describes rightly."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    whole = struct.pack("<Q", len(raw) if length is None else length) + raw + data

    def make():
        (EVIL / MODEL).write_bytes(whole)
        seal_model(hashlib.sha256(whole).hexdigest(), len(whole))

    return make


def seal_model(digest, size):
    files = json.loads((EVIL / MANIFEST).read_text())["files"]
    manifest(files={**files, MODEL: {"sha256": digest, "bytes": size}}, aliases={})()


def sparse_model():
    """Larger than the limit of memory, though next to nothing on the disk."""
    size = EXTRA_BYTES + (64 << 20)
    raw = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    (EVIL / MODEL).write_bytes(struct.pack("<Q", len(raw)) + raw)
    os.truncate(EVIL / MODEL, 8 + len(raw) + size)
    digest = hashlib.sha256((EVIL / MODEL).read_bytes()[: 8 + len(raw)])
    for _ in range(size >> 20):
        digest.update(bytes(1 << 20))
    seal_model(digest.hexdigest(), 8 + len(raw) + size)


def instead(name, make):
    """A case of something else in place of a file."""

    def act():
        (EVIL / name).unlink()
        make(EVIL / name)

    return act


def link_to_original(path):
    path.symlink_to((ORIGINAL / path.name).resolve())


def listen(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def zero_device(path):
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))


def link_step():
    shutil.rmtree(EVIL)
    EVIL.symlink_to(ORIGINAL.resolve())


def link_checkpoints():
    shutil.rmtree(EVIL.parent)
    EVIL.parent.symlink_to(ORIGINAL.parent.resolve())


def nested(depth):
    inner = {}
    for _ in range(depth):
        inner = {"a": inner}
    return inner


FILES = {name: {"sha256": "0" * 64, "bytes": 1} for name in (MODEL, "optimizer.safetensors")}
PLACES = {
    "link": link_to_original,
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "socket": listen,
    **({"device": zero_device} if os.geteuid() == 0 else {}),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path.name),
}
COUNTERS = [-1, 1 << 63, 10**4000, True, 1.5, 4.0, float("nan"), float("inf"), None, "4", [4], {}]
CASES = {
    **{f"{name}: {place}": instead(name, make) for name in (MANIFEST, MODEL) for place, make in PLACES.items()},
    "step: link": link_step,
    "checkpoints: link": link_checkpoints,
    **{
        f"counter {str(value)[:9]} {type(value).__name__}": manifest(counters={"global_step": value})
        for value in COUNTERS
    },
    "counters: foreign name": manifest(counters={"__class__": 1}),
    "manifest: too large": manifest(data={"x": "x" * (5 << 20)}),
    "manifest: sparse": lambda: os.truncate(EVIL / MANIFEST, 1 << 40),
    "manifest: 1e999": text('{"format": 1e999}'),
    "manifest: long number": text('{"format": ' + "1" * 100_000 + "}"),
    "manifest: list bomb": text("[" * 1_000_000),
    "manifest: dictionary bomb": text('{"a":' * 500_000),
    "manifest: million lists": text("[" + "[]," * 1_300_000 + "[]]"),
    "manifest: no text": lambda: (EVIL / MANIFEST).write_bytes(b"\xff\xfe\x00"),
    "manifest: pickle": lambda: (EVIL / MANIFEST).write_bytes(pickle.dumps({"format": 1})),
    "manifest: format true": manifest(format=True),
    "manifest: format 1.0": manifest(format=1.0),
    "manifest: long format": manifest(format="x" * 100_000),
    "manifest: control characters": manifest(format="\x1b[2J\x07\n"),
    "files: outside": manifest(files={**FILES, "../../secret": FILES[MODEL]}),
    "files: outside instead": manifest(files={"../model.safetensors": FILES[MODEL], "/etc/passwd": FILES[MODEL]}),
    "files: missing": manifest(files={MODEL: FILES[MODEL]}),
    "files: bytes": manifest(files={**FILES, MODEL: {"sha256": "0" * 64, "bytes": 1e999}}),
    "files: digest": manifest(files={**FILES, MODEL: {"sha256": ["0" * 64], "bytes": 1}}),
    "files: text": manifest(files={**FILES, MODEL: "../x"}),
    "aliases: to nothing": manifest(aliases={"a": "nothing"}),
    "aliases: of a tensor": manifest(aliases={"w": "w"}),
    "aliases: null": manifest(aliases={"a": None}),
    "aliases: many wrong": manifest(aliases={str(number): 1 for number in range(100_000)}),
    "notes: numbers": manifest(notes=[1]),
    "versions: list": manifest(versions=[1]),
    "size: text": manifest(size="2"),
    "eval_row: list": manifest(eval_row=[1]),
    "eval_row: step": manifest(eval_row={"global_step": "x"}),
    "plan: sizes": manifest(plan={"sizes": [1]}),
    "plan: batch": manifest(plan={"sizes": {"global_batch_size": 1e999}}),
    "header: length 2^63": tensors(b"{}", length=1 << 63),
    "header: length beyond the file": tensors(b"{}", length=1 << 40),
    "header: cut": tensors(b"", length=2),
    "header: list bomb": tensors(b"[" * 1_000_000),
    "header: dictionary bomb": tensors(b'{"a":' * 500_000),
    "header: no JSON": tensors(b"\x80\x04\x95"),
    "header: long dtype": tensors({"w": {**F32, "dtype": "x" * 100_000}}, bytes(4)),
    "header: dtype of no NumPy": tensors({"w": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}, bytes(4)),
    "tensor: larger than its bytes": tensors({"w": {**F32, "shape": [1 << 40]}}, bytes(4)),
    "tensor: larger than the file": tensors({"w": {**F32, "shape": [1 << 40], "data_offsets": [0, 4 << 40]}}, bytes(4)),
    "tensor: overflow": tensors({"w": {**F32, "shape": [1 << 62, 1 << 62]}}, bytes(4)),
    "tensor: empty and too large": tensors({"w": {**F32, "shape": [0, 1 << 62, 1 << 62], "data_offsets": [0, 0]}}),
    "tensor: hundred dimensions": tensors({"w": {**F32, "shape": [1] * 100}}, bytes(4)),
    "tensor: negative": tensors({"w": {**F32, "shape": [-1]}}, bytes(4)),
    "tensor: fraction": tensors(b'{"w":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}', bytes(4)),
    "tensor: 1e999": tensors(b'{"w":{"dtype":"F32","shape":[1e999],"data_offsets":[0,4]}}', bytes(4)),
    "tensor: overlap": tensors({"v": F32, "w": F32}, bytes(4)),
    "tensor: gap": tensors({"w": {**F32, "data_offsets": [4, 8]}}, bytes(8)),
    "tensor: left over": tensors({"w": F32}, bytes(8)),
    "tensor: larger than memory": sparse_model,
}
READABLE = {
    "as it was": lambda: None,
    "sealed again": manifest(),
    "deeply nested": manifest(notes=[], more=nested(50)),
    "other model": tensors({"\x1b[2J[red]w": F32}, bytes(4)),
}
WAYS = {
    "load": lambda: checkpoint.load(EVIL),
    "find_latest": lambda: checkpoint.find_latest(EVIL.parent),
    "resume": lambda: ResumeRequest(is_wanted=True).find(EVIL.parent),
    "inspect": lambda: inspect_checkpoint(EVIL.parents[1], verify=True),
}


def open_it(way):
    try:
        way()
    except CheckpointError as error:
        return len(str(error).replace(str(EVIL.parent), ""))
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:300]
    return "read"


def main():
    make_original()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + EXTRA_BYTES
    for name, make in {**READABLE, **CASES}.items():
        shutil.rmtree("evil", ignore_errors=True)
        shutil.copytree("original", "evil")
        make()
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        began = time.perf_counter()
        told = {way: open_it(act) for way, act in WAYS.items()}
        seconds = time.perf_counter() - began
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(json.dumps({"case": name, "seconds": seconds, **told}), flush=True)


if __name__ == "__main__":
    main()
