"""Checkpoints on disk: a folder per step, written whole or not at all, verified when read.

``step-00000042/`` holds ``manifest.json``, ``model.safetensors`` and ``optimizer.safetensors``. It is written
under another name, synced, and renamed, so that readers only ever see committed ones. No pickle anywhere, and
nothing in a checkpoint is trusted: links are refused, sizes are bounded, damage is an error that names the file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.errors import CheckpointError
from hvdtrain.manifest import FILES, find_fault
from hvdtrain.plain_files import printable, read_json
from hvdtrain.portable import PortableState
from hvdtrain.tensor_file import OnBytes, ignore, read_tensors, write_tensors

_log = logging.getLogger(__name__)

#: Number of the layout described here; raised when an older reader would misread a newer folder.
FORMAT = 1

_NAME = re.compile(r"step-(\d{8,})(\.tmp-old)?")
#: Ends the name of a checkpoint while another one of the same step takes its place.
_REPLACED = ".tmp-old"

#: Of a manifest; real ones take a few thousand. Bounds what a hostile one makes of memory.
_MAX_BYTES = 1 << 22

#: Damaged checkpoints that a message tells of.
_MAX_TOLD = 5


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
    """Return the committed checkpoints of a folder, oldest first; unfinished ones are not seen.

    One that a kill caught while it was being replaced is found under the name that it had at that moment.

    Raises:
        CheckpointError: The folder is a link.
    """
    if folder.is_symlink():
        raise CheckpointError(f"checkpoints: {folder} must be a folder, got a link. Name the folder it leads to.")
    if not folder.is_dir():
        return []
    found: dict[int, Path] = {}
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        if match[2] is None:
            found[int(match[1])] = path
        else:
            found.setdefault(int(match[1]), path)
    return [path for _, path in sorted(found.items())]


def commit(
    folder: Path,
    global_step: int,
    state: PortableState,
    manifest: Mapping[str, Any],
    on_bytes: OnBytes = ignore,
) -> Path:
    """Write the checkpoint of a step and return its folder.

    After this call either the whole folder stands under its final name, synced to disk, or nothing does.

    Args:
        folder: Where checkpoints stand; made when missing.
        global_step: Optimizer updates so far.
        state: Weights and slots.
        manifest: What else belongs to the step; JSON values. Format, aliases and digests are added.
        on_bytes: Told of the bytes of each piece that was written.

    Raises:
        CheckpointError: The disk is full, read-only, or otherwise refuses; or a tensor has a dtype of no file.
    """
    final = folder / checkpoint_name(global_step)
    unfinished = folder / f"{final.name}.tmp-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        tensors = zip(FILES, (state.weights, state.slots), strict=True)
        files = {name: write_tensors(unfinished / name, arrays, on_bytes) for name, arrays in tensors}
        _write_manifest(unfinished / "manifest.json", {**manifest, "aliases": state.aliases, "files": files})
        _sync(unfinished)
        _put_in_place(unfinished, final)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckpointError(
            f"commit: a checkpoint must be written whole, got {type(error).__name__}: {error} at {final}. "
            "Earlier checkpoints are intact; make room or choose another --run-dir."
        ) from error
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return final


def load(path: Path, on_bytes: OnBytes = ignore) -> Checkpoint:
    """Read one checkpoint and verify the digest of every file; ``on_bytes`` is told of each piece.

    Raises:
        CheckpointError: A file is missing, damaged, or of a newer format; the message names it.
    """
    manifest = read_manifest(path)
    weights, slots = (read_tensors(path / name, manifest["files"][name], on_bytes) for name in FILES)
    require_aliases(path, manifest["aliases"], weights)
    return Checkpoint(path, manifest, PortableState(weights, slots, manifest["aliases"], _updates(manifest)))


def load_named(path: Path, on_bytes: OnBytes = ignore) -> Checkpoint:
    """Read the checkpoint that a person means: the folder of one, or the newest that verifies in the folder of a run.

    Args:
        path: Folder of a checkpoint, of a run, or of its checkpoints.
        on_bytes: Told of the bytes of each piece that is read.

    Raises:
        CheckpointError: There is none, or none is whole; the message says why.
    """
    if not path.exists():
        raise CheckpointError(f"load: a checkpoint, or a run folder with one, must exist, got {path}. Check the path.")
    is_one = (path / "manifest.json").exists()
    for folder in () if is_one else (path / "checkpoints", path):
        paths = list_checkpoints(folder)
        found = find_latest(folder, on_bytes)
        if found is not None:
            passed = [other.name for other in paths[paths.index(found.path) + 1 :]]
            damaged = f" ({', '.join(passed)} passed over as damaged)" if passed else ""
            _log.info("checkpoint: of %s the newest is taken, %s%s", path, found.path.name, damaged)
            return found
    return load(path, on_bytes)


def read_manifest(path: Path) -> dict[str, Any]:
    """Return what a checkpoint says of itself, its tensors unread.

    Raises:
        CheckpointError: There is no manifest, or one that this version cannot read.
    """
    if path.is_symlink():
        raise CheckpointError(f"load: {path} must be a folder, got a link. Name the folder it leads to.")
    if (path / "checkpoints").is_dir():
        raise CheckpointError(f"load: {path} must be a checkpoint, got a run folder that holds none. Name another.")
    file = path / "manifest.json"
    try:
        manifest = read_json(file, max_bytes=_MAX_BYTES)
    except (OSError, ValueError) as error:
        text = str(error) if isinstance(error, OSError) else printable(error)
        raise CheckpointError(f"load: {file} cannot be read: {text}. Use an older checkpoint.") from error
    number = manifest.get("format") if isinstance(manifest, dict) else None
    if type(number) is not int or number != FORMAT:
        raise CheckpointError(
            f"load: format must be {FORMAT}, got {printable(repr(number), 20)} in {file}. Use a newer hvdtrain."
        )
    if not all(isinstance(manifest.get(key), dict) for key in ("aliases", "files")):
        raise CheckpointError(f"load: {file} lacks files or aliases. Use an older checkpoint.")
    digest = manifest.pop("digest", None)
    try:
        is_whole = digest == _digest_of(manifest)
    except RecursionError:  # what reads takes one more level than what writes
        is_whole = False
    if not is_whole:
        raise CheckpointError(f"load: {file} does not match its own digest. Use an older checkpoint.")
    fault = find_fault(manifest)
    if fault is not None:
        raise CheckpointError(f"load: {fault}, got something else in {file}. Use an older checkpoint.")
    return dict(manifest)


def require_aliases(path: Path, aliases: Mapping[str, Any], names: Collection[str]) -> None:
    """Refuse aliases that stand for no tensor, or in the place of one.

    Raises:
        CheckpointError: One does.
    """
    if not all(name in names and alias not in names for alias, name in aliases.items()):
        raise CheckpointError(f"load: {path} must alias tensors that it holds. Use an older checkpoint.")


def find_latest(folder: Path, on_bytes: OnBytes = ignore) -> Checkpoint | None:
    """Return the newest checkpoint that verifies; ``None`` when there is none to try.

    ``on_bytes`` is told of each piece that is read.

    Raises:
        CheckpointError: There are checkpoints and none verifies.
    """
    paths = list_checkpoints(folder)
    errors = []
    for path in reversed(paths):
        try:
            return load(path, on_bytes)
        except CheckpointError as error:
            errors.append(str(error))
    if errors:
        more = [f"Nor do {len(errors) - _MAX_TOLD} older ones."] if len(errors) > _MAX_TOLD else []
        told = " ".join([*errors[:_MAX_TOLD], *more])
        raise CheckpointError(f"find_latest: no checkpoint of {folder} verifies. {told}")
    return None


def remove_unfinished(folder: Path, *, newer_than: int) -> None:
    """Remove what a killed run left half written, and checkpoints of steps that the continued run makes anew.

    A checkpoint that was being replaced gets its name back.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    paths = list_checkpoints(folder)
    for path in folder.glob("step-*.tmp-*"):
        if path not in paths:
            shutil.rmtree(path, ignore_errors=True)
    for path in paths:
        name = path.name.removesuffix(_REPLACED)
        if int(name.removeprefix("step-")) > newer_than:
            remove(path)
        elif name != path.name:
            _rename_back(path, path.with_name(name))


def remove(path: Path) -> None:
    """Take a checkpoint away at once: whatever interrupts this, no half of it is taken for a whole one."""
    gone = path.with_name(f"{path.name}.tmp-gone")
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(OSError):
        path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _write_manifest(file: Path, values: Mapping[str, Any]) -> None:
    whole: dict[str, Any] = {"format": FORMAT, **values}
    whole["digest"] = _digest_of(whole)
    text = json.dumps(whole, indent=1).encode() + b"\n"
    if len(text) > _MAX_BYTES:
        raise CheckpointError(
            f"commit: a manifest must stay below {_MAX_BYTES} bytes, got {len(text)}. Use fewer shards or notes."
        )
    with file.open("xb") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _put_in_place(unfinished: Path, final: Path) -> None:
    """Give a complete folder its final name; one of the same step is whole under one of two names until then."""
    replaced = final.with_name(f"{final.name}{_REPLACED}")
    if final.exists():  # a run that resumed before this step reaches it again
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    try:
        unfinished.rename(final)
    except OSError:
        if replaced.exists():
            _rename_back(replaced, final)
        raise
    _sync(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _rename_back(replaced: Path, final: Path) -> None:
    try:
        replaced.rename(final)
        _sync(final.parent)
    except OSError as error:
        raise CheckpointError(
            f"checkpoints: {replaced} must become {final.name} again, got {error}. Rename it, and resume."
        ) from error


def _digest_of(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _updates(manifest: Mapping[str, Any]) -> int:
    step: int = manifest.get("counters", {}).get("global_step", 0)
    return step


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
