"""What a run leaves behind: configuration, rows of metrics, summary, checkpoints, and a lock while it runs.

Only the root rank opens one. Rows are appended whole, so that others can read while training runs. A folder that a
stranger made can be continued: no link leads out of it, and what is broken in it is passed over.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from hvdtrain.errors import ConfigError
from hvdtrain.plain_files import open_plain, read_json, require_plain

_FILES = ("config.json", "metrics.jsonl", "summary.json")
_USED = (*_FILES, "checkpoints")

#: Of a summary, and of a row of metrics; real ones take a few hundred.
_MAX_BYTES = 1 << 20


class RunFolder:
    """The folder of one run, locked against a second one."""

    def __init__(self, path: Path, lock: IO[str]) -> None:
        """Keep the path and the held lock; use :meth:`open`."""
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path, *, resumes: bool = False) -> RunFolder:
        """Make the folder of a new run and lock it; one that ``resumes`` may hold the run that goes on.

        Raises:
            ConfigError: The folder holds a run already, another process is using it, or it cannot be made.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            _require_own_files(path, [".lock"])
            lock = (path / ".lock").open("w")
        except OSError as error:
            raise ConfigError(
                f"run folder: {path} must be a folder that can be written, got {error}. Choose another --run-dir."
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise ConfigError(
                f"run folder: {path} is in use by another run. Wait for it, or choose another --run-dir."
            ) from None
        used = [] if resumes else [name for name in _USED if (path / name).exists()]
        if used:
            (path / ".lock").unlink(missing_ok=True)
            lock.close()
            raise ConfigError(
                f"run folder: {path} must be new, got one that holds {', '.join(used)}. Continue it with "
                "--resume, or choose another --run-dir."
            )
        folder = cls(path, lock)
        try:
            _require_own_files(path, [*_FILES, *(f".{name}.tmp" for name in _FILES)])
            if folder.checkpoints.is_symlink():
                raise OSError(f"{folder.checkpoints} is a link, not a folder")
        except OSError as error:
            folder.close()
            raise ConfigError(
                f"run folder: {path} must hold files of its own, got {error}. Remove it, or choose another --run-dir."
            ) from error
        return folder

    @property
    def checkpoints(self) -> Path:
        """Where this run's checkpoints stand."""
        return self.path / "checkpoints"

    def write_config(self, values: Mapping[str, Any]) -> None:
        """Write ``config.json``."""
        self._write_json("config.json", values)

    def write_summary(self, values: Mapping[str, Any]) -> None:
        """Write ``summary.json``, whole or not at all."""
        self._write_json("summary.json", values)

    def read_summary(self) -> dict[str, Any] | None:
        """Return ``summary.json`` of a finished run, ``None`` while there is none that can be read."""
        try:
            summary = read_json(self.path / "summary.json", max_bytes=_MAX_BYTES)
        except (OSError, ValueError):
            return None
        return summary if isinstance(summary, dict) else None

    def cut_back(self, global_step: int, eval_step: int) -> None:
        """Take the rows and the summary away that a killed run wrote after the step that is restored.

        Broken lines go too: a kill cuts the last one, a power cut leaves zeros, anywhere.

        Args:
            global_step: The restored step; 0 takes all rows away.
            eval_step: Step of the last evaluation that the checkpoint knows of; a later one is made again.
        """
        (self.path / "summary.json").unlink(missing_ok=True)
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return
        unfinished = self.path / ".metrics.jsonl.tmp"
        with open_plain(file) as rows, unfinished.open("wb") as kept:
            for line in iter(lambda: rows.readline(_MAX_BYTES), b""):
                if _is_kept(line, global_step, eval_step):
                    kept.write(line)
        os.replace(unfinished, file)

    def append_row(self, row: Mapping[str, Any]) -> None:
        """Add one line to ``metrics.jsonl`` in one write, so that a reader never sees half a line."""
        with (self.path / "metrics.jsonl").open("a") as stream:
            stream.write(json.dumps(row) + "\n")

    def close(self) -> None:
        """Release the lock."""
        (self.path / ".lock").unlink(missing_ok=True)
        self._lock.close()

    def _write_json(self, name: str, values: Mapping[str, Any]) -> None:
        unfinished = self.path / f".{name}.tmp"
        unfinished.write_text(json.dumps(values, indent=1) + "\n")
        os.replace(unfinished, self.path / name)


def _is_kept(line: bytes, global_step: int, eval_step: int) -> bool:
    """Return whether a line is a whole row of a step that is not made again."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not line.endswith(b"\n") or not isinstance(row, dict):
        return False
    step, last = row.get("global_step"), global_step if row.get("event") == "train" else eval_step
    return isinstance(step, int) and step <= last


def _require_own_files(path: Path, names: Sequence[str]) -> None:
    """Refuse what is there under these names and is no regular file, before anything is written through it."""
    for name in names:
        if os.path.lexists(path / name):
            require_plain(path / name)
