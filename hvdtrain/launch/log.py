"""The file that keeps what mpirun itself says, so that it does not stand behind what ranks say."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hvdtrain.errors import ConfigError

#: A log above the first size loses all but the second, its end.
_MAX_BYTES, _KEPT_BYTES = 1 << 20, 1 << 18


def default_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the log lies unless the user says otherwise."""
    state = environ.get("XDG_STATE_HOME", "")
    # The specification of these folders has relative ones ignored.
    folder = Path(state) if os.path.isabs(state) else Path(os.path.expanduser("~/.local/state"))
    return folder / "hvdtrain" / "launch.log"


class LauncherLog:
    """Appends to one file; every launch that has something to say begins with its time and command.

    Attributes:
        path: The file; ``None`` where the default one cannot be written, and nothing is kept then.
    """

    def __init__(self, path: Path | None, command: Sequence[str]) -> None:
        """Make the folder, and cut a file that has grown large.

        Args:
            path: The file that the user wants, ``None`` for the default one.
            command: What is launched.

        Raises:
            ConfigError: The file that the user wants cannot be written.
        """
        self.path: Path | None = path or default_path()
        self._command = command
        self._has_begun = False
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("ab").close()
            _cut(self.path)
        except OSError as error:
            if path is not None:
                rule = f"--launcher-log must be a file that can be written, got {str(path)!r} ({error})"
                raise ConfigError(f"launch: {rule}. Check the path.") from error
            self.path = None

    def write(self, text: bytes) -> None:
        """Append whole lines; a full disk is no reason to end a job."""
        if self.path is None:
            return
        began = f"== {time.strftime('%Y-%m-%dT%H:%M:%S%z')} {shlex.join(self._command)}\n".encode()
        with self._lock, suppress(OSError), self.path.open("ab") as stream:
            stream.write(text if self._has_begun else began + text)
            self._has_begun = True


def _cut(path: Path) -> None:
    """Keep the last whole lines of a file that has grown large."""
    if path.stat().st_size <= _MAX_BYTES:
        return
    with path.open("rb") as stream:
        stream.seek(-_KEPT_BYTES, os.SEEK_END)
        kept = stream.read().partition(b"\n")[2]
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    unfinished.write_bytes(kept)
    os.replace(unfinished, path)
