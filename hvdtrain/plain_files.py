"""Files that a stranger may have made: opened only when they are regular ones, read no further than expected.

A link could lead out of the folder, a pipe would wait for ever, and a device is none of our business.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO


def require_plain(path: Path) -> None:
    """Refuse what is not a regular file; nothing is opened.

    Raises:
        OSError: There is nothing, or a link, a folder, a pipe or a device.
    """
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        raise OSError(f"{path} is a link, not a file")
    if not stat.S_ISREG(mode):
        raise OSError(f"{path} is not a regular file")


def open_plain(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: It cannot be read, or is not a regular file.
    """
    require_plain(path)
    # Not even when it was exchanged since: a link is not followed, a pipe is not waited for.
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def read_json(path: Path, *, max_bytes: int) -> Any:
    """Return what a JSON file of at most ``max_bytes`` holds.

    Raises:
        OSError: It cannot be read, or is not a regular file.
        ValueError: It is larger, is no JSON, or is nested too deep.
    """
    with open_plain(path) as stream:
        text = stream.read(max_bytes + 1)
    if len(text) > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def printable(text: object, limit: int = 200) -> str:
    r"""Return at most ``limit`` characters of a text that a stranger may have written, safe to print.

    Example:
        >>> printable("a\x1b[2Jb", limit=4)
        'a?[2...'
    """
    whole = str(text)
    shown = "".join(character if character.isprintable() else "?" for character in whole[:limit])
    return shown if len(whole) <= limit else f"{shown}..."
