"""What a checkpoint holds, read without a framework and without trusting it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hvdtrain import checkpoint
from hvdtrain.errors import CheckpointError
from hvdtrain.manifest import FILES
from hvdtrain.tensor_file import has_digest, iter_tensors, unreadable

DigestState = Literal["not checked", "matches", "DAMAGED"]

#: Values whose norm is taken at a time, so that a large tensor needs no second copy in float64.
_CHUNK = 1 << 20


@dataclass(frozen=True)
class FileFacts:
    """One file of a checkpoint: its name, its size in bytes, and whether its digest was found right."""

    name: str
    num_bytes: int
    digest: DigestState


@dataclass(frozen=True)
class TensorFacts:
    """One tensor.

    Attributes:
        norm: Euclidean norm of its finite values.
        num_nonfinite: Values that are infinite or not a number.
        first: Its first value, ``None`` when it has none or is complex.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    norm: float
    num_nonfinite: int
    first: float | None

    @property
    def num_values(self) -> int:
        """Return the number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class SlotFacts:
    """The optimizer slots of one name, over all parameters.

    Attributes:
        lowest: Smallest of their values where each holds a single one, such as a step count; else ``None``.
        highest: The largest one, likewise.
    """

    name: str
    dtypes: str
    num_tensors: int
    num_values: int
    norm: float
    num_nonfinite: int
    lowest: float | None
    highest: float | None


@dataclass(frozen=True)
class Inspection:
    """A checkpoint as far as it could be read; tensors of a damaged file are left out."""

    path: Path
    manifest: Mapping[str, Any]
    files: Sequence[FileFacts]
    weights: Sequence[TensorFacts]
    slots: Sequence[SlotFacts]

    @property
    def damaged(self) -> list[str]:
        """Return the files that do not match their digests."""
        return [file.name for file in self.files if file.digest == "DAMAGED"]


def inspect_checkpoint(path: Path, *, verify: bool) -> Inspection:
    """Read a checkpoint, or the newest one of a run folder, one tensor at a time.

    Args:
        path: Folder of a checkpoint, of a run, or of its checkpoints.
        verify: Compare the digest of each file, which reads it once more.

    Raises:
        CheckpointError: There is none, its manifest is damaged, or a file cannot be read.
    """
    path = find_checkpoint(path)
    manifest = checkpoint.read_manifest(path)
    files = [_file_facts(path / name, manifest["files"][name], verify=verify) for name in FILES]
    tensors = [
        [] if file.digest == "DAMAGED" else [tensor_facts(*item) for item in _tensors_of(path, file, manifest)]
        for file in files
    ]
    if files[0].digest != "DAMAGED":
        checkpoint.require_aliases(path, manifest["aliases"], {tensor.name for tensor in tensors[0]})
    weights = sorted(tensors[0], key=lambda tensor: _natural(tensor.name))
    return Inspection(path, manifest, files, weights, _grouped(tensors[1]))


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint that a path means: itself, or the newest one in the folder of a run.

    Raises:
        CheckpointError: There is none.
    """
    if (path / "manifest.json").exists():
        return path
    for folder in (path / "checkpoints", path):
        found = checkpoint.list_checkpoints(folder)
        if found:
            return found[-1]
    raise CheckpointError(
        f"inspect: {path} must be a checkpoint, or a run folder with one, got neither. Look for step-*."
    )


def tensor_facts(name: str, array: NDArray[Any]) -> TensorFacts:
    """Return shape, dtype, norm and count of non-finite values of a tensor."""
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    flat, total, num_finite = array.reshape(-1), 0.0, 0
    with np.errstate(over="ignore"):
        for start in range(0, flat.size, _CHUNK):
            sizes = np.abs(flat[start : start + _CHUNK].astype(wide))
            finite = sizes[np.isfinite(sizes)]
            total += float(np.square(finite).sum())
            num_finite += finite.size
    first = float(flat[0]) if flat.size and wide is np.float64 else None
    return TensorFacts(name, str(array.dtype), array.shape, math.sqrt(total), flat.size - num_finite, first)


def _file_facts(file: Path, expected: Mapping[str, Any], *, verify: bool) -> FileFacts:
    state: DigestState = "not checked"
    if verify:
        try:
            state = "matches" if has_digest(file, expected) else "DAMAGED"
        except OSError as error:
            raise unreadable(file, error) from error
    return FileFacts(file.name, expected["bytes"], state)


def _tensors_of(path: Path, file: FileFacts, manifest: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    return iter_tensors(path / file.name, manifest["files"][file.name])


def _grouped(slots: Sequence[TensorFacts]) -> list[SlotFacts]:
    groups: dict[str, list[TensorFacts]] = {}
    for tensor in slots:
        groups.setdefault(tensor.name.rsplit("/", 1)[-1], []).append(tensor)
    return [_slot_facts(name, groups[name]) for name in sorted(groups)]


def _slot_facts(name: str, tensors: Sequence[TensorFacts]) -> SlotFacts:
    values = [tensor.first for tensor in tensors if tensor.first is not None and tensor.num_values == 1]
    are_single = len(values) == len(tensors)
    return SlotFacts(
        name,
        ", ".join(sorted({tensor.dtype for tensor in tensors})),
        len(tensors),
        sum(tensor.num_values for tensor in tensors),
        math.hypot(*(tensor.norm for tensor in tensors)),
        sum(tensor.num_nonfinite for tensor in tensors),
        min(values) if are_single else None,
        max(values) if are_single else None,
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """Return what sorts names with their numbers by value: layer 2 before layer 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", name)]
