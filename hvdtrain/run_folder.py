"""What a run leaves behind: configuration, rows of metrics, summary, checkpoints, and a lock while it runs.

Only the root rank opens one. Rows are appended whole, so that others can read while training runs.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from hvdtrain.errors import ConfigError

_USED = ("config.json", "metrics.jsonl", "summary.json", "checkpoints")


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
        return cls(path, lock)

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
        """Return ``summary.json`` of a finished run, ``None`` while there is none."""
        file = self.path / "summary.json"
        return json.loads(file.read_text()) if file.exists() else None

    def cut_back(self, global_step: int, eval_step: int) -> None:
        """Take the rows and the summary away that a killed run wrote after the step that is restored.

        Args:
            global_step: The restored step; 0 takes all rows away.
            eval_step: Step of the last evaluation that the checkpoint knows of; a later one is made again.
        """
        (self.path / "summary.json").unlink(missing_ok=True)
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return
        kept = []
        for line in file.read_text().splitlines(keepends=True):
            try:
                row = json.loads(line)
            except ValueError:
                break  # a power cut left zeros
            if not line.endswith("\n"):
                break  # a kill cut the last line
            last = global_step if row["event"] == "train" else eval_step
            if row["global_step"] <= last:
                kept.append(line)
        unfinished = self.path / ".metrics.jsonl.tmp"
        unfinished.write_text("".join(kept))
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
