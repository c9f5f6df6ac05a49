"""TensorBoard events without either framework."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtrain.callbacks import Callback, Row, StepReport

if TYPE_CHECKING:
    from hvdtrain.trainer import Trainer


class TensorBoard(Callback):
    """Writes every number of every row as a scalar, against samples seen.

    Uses tensorboardX's writer of event files without its queue and thread, so that rows can be read as soon as they
    are made, and none is lost when the run fails.
    """

    def __init__(self, folder: Path) -> None:
        """Open an event file in ``folder``."""
        with _hidden("torch"):
            self._protocol = importlib.import_module("tensorboardX.proto.event_pb2")
            self._summary = importlib.import_module("tensorboardX.proto.summary_pb2")
            files = importlib.import_module("tensorboardX.event_file_writer")
        self._writer = files.EventsWriter(str(folder / "events"))

    def on_step_end(self, trainer: Trainer, report: StepReport) -> None:
        """Write the row of training metrics."""
        if report.row is not None:
            self._write(report.row)

    def on_evaluate(self, trainer: Trainer, row: Row) -> None:
        """Write the row of an evaluation."""
        self._write(row)

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()

    def _write(self, row: Row) -> None:
        values = [
            self._summary.Summary.Value(tag=f"{row['event']}/{name}", simple_value=value)
            for name, value in row.items()
            if isinstance(value, float)
        ]
        summary = self._summary.Summary(value=values)
        self._writer.write_event(self._protocol.Event(wall_time=time.time(), step=row["samples_seen"], summary=summary))
        self._writer.flush()


@contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Import tensorboardX without side effects.

    Version 2.6 imports ``package`` wherever it is installed, for tensors that are never given to it here, and sets
    a variable of the environment.
    """
    modules: dict[str, Any] = sys.modules
    hides, environ = package not in modules, dict(os.environ)
    if hides:
        modules[package] = None
    try:
        yield
    finally:
        if hides:
            del modules[package]
        for name in set(os.environ) - set(environ):
            del os.environ[name]
