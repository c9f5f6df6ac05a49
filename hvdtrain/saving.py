"""When checkpoints are written, and by whom: a thread, so that training waits for a copy in memory alone."""

from __future__ import annotations

import copy
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hvdtrain import checkpoint
from hvdtrain.config import TrainConfig
from hvdtrain.errors import CheckpointError
from hvdtrain.portable import Array, PortableState
from hvdtrain.recorder import Counters

Row = Mapping[str, Any]

_log = logging.getLogger(__name__)


class Saver:
    """Writes the checkpoints of one run; holds a folder on the root alone."""

    def __init__(self, folder: Path | None, config: TrainConfig) -> None:
        """Write into ``folder``; other ranks have none."""
        self._folder = folder
        self._config = config
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        #: The copy that is being written, kept from save to save: memory that was never touched costs many times
        #: what a copy does, because the system has to find each page.
        self._staged = PortableState({})
        self._last_time = time.monotonic()
        self._last: tuple[int, int | None] | None = None
        self._committed: queue.SimpleQueue[Path] = queue.SimpleQueue()
        #: Grows while a checkpoint is written; the watchdog reads it from its thread.
        self.written_bytes = 0

    def wants_by_clock(self) -> bool:
        """Return whether ``save_every_minutes`` have passed on this rank's clock; the root's vote decides."""
        minutes = self._config.save_every_minutes
        return self._folder is not None and minutes is not None and time.monotonic() - self._last_time >= 60 * minutes

    def is_due_after_step(self, counters: Counters, *, is_voted: bool) -> bool:
        """Return whether a checkpoint belongs after this update; the same on every rank."""
        every = self._config.save_every_steps
        return is_voted or (every is not None and counters.global_step % every == 0)

    def is_due_after_epoch(self, counters: Counters) -> bool:
        """Return whether a checkpoint belongs after this complete epoch; the same on every rank."""
        every = self._config.save_every_epochs
        is_between = counters.step_in_epoch == 0 and counters.epoch > 0
        return every is not None and is_between and counters.epoch % every == 0

    def begin_at(self, global_step: int, eval_row: Row | None) -> None:
        """Take the checkpoint that the run continues from as the last one."""
        self._last = global_step, _evaluated_step(eval_row)

    def has_saved(self, global_step: int, eval_row: Row | None) -> bool:
        """Return whether the last checkpoint is of this very step, and knows of its evaluation where there is one."""
        return self._last == (global_step, _evaluated_step(eval_row))

    def reserve(self, state: PortableState) -> None:
        """Touch the memory of the first copy, in the background, where training is to be saved while it runs."""
        config = self._config
        is_needed = config.save_every_steps or config.save_every_epochs or config.save_every_minutes
        if self._folder is not None and is_needed:
            self._start(self._stage, state)

    def save(self, state: PortableState, manifest: Mapping[str, Any], global_step: int) -> None:
        """Copy the state and write it in the background, after the last one is done.

        Raises:
            CheckpointError: The last one could not be written.
        """
        self.wait()
        self._last_time, self._last = time.monotonic(), (global_step, _evaluated_step(manifest.get("eval_row")))
        if self._folder is None:
            return
        self._stage(state)
        self._start(self._write, self._folder, self._staged, copy.deepcopy(dict(manifest)), global_step)

    def wait(self) -> None:
        """Return once nothing is being written.

        Raises:
            CheckpointError: The last checkpoint could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def take_committed(self) -> list[Path]:
        """Return the checkpoints committed since the last call."""
        return [self._committed.get() for _ in range(self._committed.qsize())]

    def finish(self) -> None:
        """Return once nothing is being written, whatever came of it."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, folder: Path, state: PortableState, manifest: Mapping[str, Any], global_step: int) -> None:
        try:
            self._committed.put(checkpoint.commit(folder, global_step, state, manifest, self._count))
            self._prune(folder)
        except Exception as error:  # whatever it is, the next save or the end of the run raises it
            self._error = error
            _log.warning("save: no checkpoint of step %d (%s)", global_step, type(error).__name__)

    def _count(self, num_bytes: int) -> None:
        self.written_bytes += num_bytes

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        self._thread = threading.Thread(target=target, args=arguments, name="hvdtrain-save")
        self._thread.start()

    def _stage(self, state: PortableState) -> None:
        """Copy a state into the memory of the last copy."""
        before = self._staged
        self._staged = PortableState(
            {name: _copy(array, before.weights.pop(name, None)) for name, array in state.weights.items()},
            {name: _copy(array, before.slots.pop(name, None)) for name, array in state.slots.items()},
            dict(state.aliases),
        )

    def _prune(self, folder: Path) -> None:
        """Remove what ``keep_last`` and ``keep_best`` do not keep; the newest always stays."""
        if self._config.keep_last is None:
            return
        paths = checkpoint.list_checkpoints(folder)
        kept = set(paths[-self._config.keep_last :])
        if self._config.keep_best is not None:
            kept.add(min(paths, key=self._badness))
        for path in paths:
            if path not in kept:
                checkpoint.remove(path)

    def _badness(self, path: Path) -> float:
        """Return what orders checkpoints from best to worst: losses fall, every other metric rises."""
        name = self._config.keep_best or "loss"
        try:
            row = checkpoint.read_manifest(path).get("eval_row") or {}
        except CheckpointError:  # damaged: the worst there is
            row = {}
        value = row.get(name)
        if not isinstance(value, int | float) or math.isnan(value):
            return math.inf
        return float(value if name == "loss" or name.endswith("_loss") else -value)


def _evaluated_step(eval_row: Row | None) -> int | None:
    return None if eval_row is None else eval_row.get("global_step")


def _copy(array: Array, memory: Array | None) -> Array:
    """Return a copy of an array, in ``memory`` where that fits; axes lie as they do in the array, which is fastest."""
    if memory is None or (memory.shape, memory.dtype) != (array.shape, array.dtype):
        memory = np.empty_like(array)
    np.copyto(memory, array)
    return memory
