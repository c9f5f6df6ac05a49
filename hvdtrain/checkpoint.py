"""Checkpoints on disk: a folder per step, written whole or not at all, verified when read.

``step-00000042/`` holds ``manifest.json``, ``model.safetensors`` and ``optimizer.safetensors``. It is written
under another name, synced, and renamed, so that readers only ever see committed ones. No pickle anywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from hvdtrain.errors import CheckpointError
from hvdtrain.portable import PortableState

#: Number of the layout described here; raised when an older reader would misread a newer folder.
FORMAT = 1

_NAME = re.compile(r"step-(\d{8,})")
_FILES = ("model.safetensors", "optimizer.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """One committed checkpoint, read and verified."""

    path: Path
    manifest: Mapping[str, Any]
    state: PortableState


def checkpoint_name(global_step: int) -> str:
    """Return the folder name of a step, which sorts by step.

    Example:
        >>> checkpoint_name(42)
        'step-00000042'
    """
    return f"step-{global_step:08d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the committed checkpoints of a folder, oldest first; unfinished ones are not seen."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def commit(folder: Path, global_step: int, state: PortableState, manifest: Mapping[str, Any]) -> Path:
    """Write the checkpoint of a step and return its folder.

    After this call either the whole folder stands under its final name, synced to disk, or nothing does.

    Args:
        folder: Where checkpoints stand; made when missing.
        global_step: Optimizer updates so far.
        state: Weights and slots.
        manifest: What else belongs to the step; JSON values. Format, aliases and digests are added.

    Raises:
        CheckpointError: The disk is full, read-only, or otherwise refuses.
    """
    final = folder / checkpoint_name(global_step)
    unfinished = folder / f"{final.name}.tmp-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        for name, tensors in zip(_FILES, (state.weights, state.slots), strict=True):
            save_file({key: np.asarray(array, order="C") for key, array in tensors.items()}, unfinished / name)
        files = {name: _describe(unfinished / name) for name in _FILES}
        whole = {"format": FORMAT, **manifest, "aliases": state.aliases, "files": files}
        whole["digest"] = _digest_of(whole)
        (unfinished / "manifest.json").write_text(json.dumps(whole, indent=1) + "\n")
        _sync_folder(unfinished)
        replaced = folder / f"{final.name}.tmp-old"
        if final.exists():  # a run that resumed before this step reaches it again
            final.rename(replaced)
        unfinished.rename(final)
        _sync(folder)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckpointError(
            f"commit: a checkpoint must be written whole, got {type(error).__name__}: {error} at {final}. "
            "Earlier checkpoints are intact; make room or choose another --run-dir."
        ) from error
    return final


def load(path: Path) -> Checkpoint:
    """Read one checkpoint and verify the digest of every file.

    Raises:
        CheckpointError: A file is missing, damaged, or of a newer format; the message names it.
    """
    manifest = read_manifest(path)
    tensors = []
    for name in _FILES:
        file = path / name
        try:
            found = _describe(file)
            if found != manifest["files"][name]:
                raise CheckpointError(f"load: {file} does not match its digest in the manifest.")
            tensors.append(load_file(file))
        except (OSError, SafetensorError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"load: {file} cannot be read: {type(error).__name__}: {error}. Use an older checkpoint."
            ) from error
    weights, slots = tensors
    return Checkpoint(path, manifest, PortableState(weights, slots, manifest["aliases"], _updates(manifest)))


def read_manifest(path: Path) -> dict[str, Any]:
    """Return what a checkpoint says of itself, its tensors unread.

    Raises:
        CheckpointError: There is no manifest, or one that this version cannot read.
    """
    file = path / "manifest.json"
    try:
        manifest = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"load: {file} cannot be read: {error}. Use an older checkpoint.") from error
    number = manifest.get("format") if isinstance(manifest, dict) else None
    if number != FORMAT:
        raise CheckpointError(f"load: format must be {FORMAT}, got {number!r} in {file}. Use a newer hvdtrain.")
    if not all(isinstance(manifest.get(key), dict) for key in ("aliases", "files")):
        raise CheckpointError(f"load: {file} lacks files or aliases. Use an older checkpoint.")
    digest = manifest.pop("digest", None)
    if digest != _digest_of(manifest):
        raise CheckpointError(f"load: {file} does not match its own digest. Use an older checkpoint.")
    return dict(manifest)


def find_latest(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that verifies; ``None`` when there is none to try.

    Raises:
        CheckpointError: There are checkpoints and none verifies.
    """
    paths = list_checkpoints(folder)
    errors = []
    for path in reversed(paths):
        try:
            return load(path)
        except CheckpointError as error:
            errors.append(str(error))
    if errors:
        raise CheckpointError(f"find_latest: no checkpoint of {folder} verifies. " + " ".join(errors))
    return None


def remove_unfinished(folder: Path, *, newer_than: int) -> None:
    """Remove what a killed run left half written, and checkpoints of steps that the continued run makes anew."""
    for path in folder.glob("step-*.tmp-*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in list_checkpoints(folder):
        if int(path.name.removeprefix("step-")) > newer_than:
            shutil.rmtree(path, ignore_errors=True)


def _digest_of(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _updates(manifest: Mapping[str, Any]) -> int:
    counters = manifest.get("counters")
    step = counters.get("global_step") if isinstance(counters, dict) else 0
    return step if isinstance(step, int) else 0


def _describe(file: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return {"sha256": digest.hexdigest(), "bytes": file.stat().st_size}


def _sync_folder(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
