"""One safetensors file: written piece by piece with its digest, verified when it is read.

The library writes these files as well, but all at once: a digest would need a second pass over the file, and
nobody could tell a slow disk from a dead one. What is written here is the same to the byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from hvdtrain.errors import CheckpointError
from hvdtrain.plain_files import open_plain, printable, require_plain

Tensors = Mapping[str, NDArray[Any]]

#: Is told of the size of every piece that was read or written.
OnBytes = Callable[[int], None]

#: Names of the dtypes in the file, in the order in which the library lays tensors out.
_CODES = {
    **{"uint64": "U64", "int64": "I64", "float64": "F64", "complex64": "C64", "float32": "F32", "uint32": "U32"},
    **{"int32": "I32", "bfloat16": "BF16", "float16": "F16", "uint16": "U16", "int16": "I16"},
    **{"int8": "I8", "uint8": "U8", "bool": "BOOL"},
}
_RANKS = {code: rank for rank, code in enumerate(_CODES.values())}

#: Bytes that are written at a time; the interpreter's lock is free meanwhile, so that training goes on.
_PIECE = 1 << 22
#: Bytes after which the disk must have them all, so that progress is what stands on the disk.
_SYNC = 1 << 26

#: What reading a damaged or hostile file may raise in the library.
READ_ERRORS = (OSError, SafetensorError, ValueError, AttributeError, MemoryError)


def ignore(num_bytes: int) -> None:
    """Take note of nothing."""


def write_tensors(file: Path, tensors: Tensors, on_bytes: OnBytes) -> dict[str, Any]:
    """Write a new safetensors file and sync it; return ``{"sha256", "bytes"}`` of what was written.

    Args:
        file: Must not exist.
        tensors: Arrays by name; one that is not contiguous is copied, one at a time.
        on_bytes: Told of every piece that was written.

    Raises:
        CheckpointError: A tensor has a dtype that the format does not know.
        OSError: The disk refuses.
    """
    digest, size = hashlib.sha256(), 0
    with file.open("xb") as stream:
        for piece in _pieces(tensors):
            stream.write(piece)
            digest.update(piece)
            size += len(piece)
            on_bytes(len(piece))
            if size % _SYNC < len(piece):
                stream.flush()
                os.fsync(stream.fileno())
        stream.flush()
        os.fsync(stream.fileno())
    return {"sha256": digest.hexdigest(), "bytes": size}


def read_tensors(file: Path, expected: Mapping[str, Any], on_bytes: OnBytes = ignore) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file whose size and digest are as expected; ``on_bytes`` gets each piece's size.

    Raises:
        CheckpointError: They are not, or the file cannot be read; the message names it.
    """
    try:
        if not has_digest(file, expected, on_bytes):
            raise CheckpointError(f"load: {file} does not match its digest in the manifest.")
        # The library checks every size of the header against the file before it takes memory.
        return load_file(file)
    except READ_ERRORS as error:
        raise unreadable(file, error) from error


def iter_tensors(file: Path, expected: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the tensors of a file of the expected size, one at a time in memory; the digest is not checked.

    Raises:
        CheckpointError: The size is another, or the file cannot be read; the message names it.
    """
    try:
        require_plain(file)
        if file.stat().st_size != expected["bytes"]:
            raise CheckpointError(f"load: {file} is not as large as its manifest says. Use an older checkpoint.")
        with safe_open(file, framework="np") as stream:
            for name in stream.keys():  # noqa: SIM118 - it is no dictionary
                yield name, stream.get_tensor(name)
    except READ_ERRORS as error:
        raise unreadable(file, error) from error


def has_digest(file: Path, expected: Mapping[str, Any], on_bytes: OnBytes = ignore) -> bool:
    """Return whether a file has the expected ``sha256`` and ``bytes``; one of another size is not read.

    Raises:
        OSError: It cannot be read, or is not a regular file.
    """
    digest = hashlib.sha256()
    with open_plain(file) as stream:
        if os.fstat(stream.fileno()).st_size != expected["bytes"]:
            return False
        while piece := stream.read(1 << 20):
            digest.update(piece)
            on_bytes(len(piece))
    return bool(digest.hexdigest() == expected["sha256"])


def unreadable(file: Path, error: Exception) -> CheckpointError:
    """Return the error of a file that cannot be read; what a stranger wrote into it is shortened."""
    text = str(error) if isinstance(error, OSError) else printable(error)
    return CheckpointError(f"load: {file} cannot be read: {type(error).__name__}: {text}. Use an older checkpoint.")


def _pieces(tensors: Tensors) -> Iterator[memoryview]:
    """Yield the bytes of the file: length of the header, header, tensors without gaps, widest dtype first."""
    codes = {name: _code_of(name, array) for name, array in tensors.items()}
    names = sorted(tensors, key=lambda name: (_RANKS[codes[name]], name))
    header, end = {}, 0
    for name in names:
        start, end = end, end + tensors[name].nbytes
        header[name] = {"dtype": codes[name], "shape": list(tensors[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(struct.pack("<Q", len(text)) + text)
    for name in names:
        array = tensors[name]
        flat = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C").reshape(-1).view(np.uint8)
        for start in range(0, len(flat), _PIECE):
            yield flat[start : start + _PIECE].data


def _code_of(name: str, array: NDArray[Any]) -> str:
    code = _CODES.get(array.dtype.name)
    if code is None:
        raise CheckpointError(
            f"commit: a tensor must be of a dtype that safetensors holds, got {array.dtype.name} for {name!r}. Convert "
            "it, or leave it out of the model's state."
        )
    return code
