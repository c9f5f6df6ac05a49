"""What may watch a run: the callback interface.

Callbacks run on every rank, in the order given; the built-in ones come first and act on the root alone. One that
raises ends the job. ``trainer.request_stop()`` in any hook, on any rank, stops all ranks together after the next
step. A job file offers its own as ``def callbacks(): return [...]``::

    on_fit_begin
        for each epoch
            for each global batch:  train step, then on_step_end
            on_epoch_end
            evaluation, then on_evaluate
            checkpoint, then on_checkpoint
    on_fit_end
    close

A checkpoint is written beside training, so ``on_checkpoint`` comes once it is committed, after one of the next
steps or at the end, and on the root alone, which holds the files. A hook may read ``framework``, ``topology``,
``config``, ``counters``, ``run_dir`` and ``communicator`` of the trainer. Whatever one rank decides alone must not
lead to a collective operation.

Built in are :class:`~hvdtrain.progress.Progress`, :class:`JsonLines`, :class:`~hvdtrain.tensorboard.TensorBoard` and
:class:`~hvdtrain.trace.Trace`; :class:`~hvdtrain.mlflow_log.MlflowLog` on request. Early stopping, the best
checkpoint and the time limit are settings, because all ranks must decide them together: ``early_stop_patience``,
``keep_best``, ``max_time_s``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvdtrain.run_folder import RunFolder
    from hvdtrain.step import StepResult
    from hvdtrain.trainer import Trainer

Row = Mapping[str, Any]


@dataclass(frozen=True)
class StepReport:
    """What a callback learns of one update.

    Attributes:
        global_step: Updates so far, this one included.
        epoch: The epoch, from 1.
        result: Sums over all ranks.
        row: The row of metrics, on steps that log one.
    """

    global_step: int
    epoch: int
    result: StepResult
    row: Row | None


class Callback:
    """Base of all callbacks; each hook does nothing until it is overridden."""

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Run after the state is equal on all ranks, before the first step."""

    def on_step_end(self, trainer: Trainer, report: StepReport) -> None:
        """Run after every optimizer update."""

    def on_epoch_end(self, trainer: Trainer, epoch: int) -> None:
        """Run after the last step of an epoch, counted from 1; also where a limit, but no signal, cut it short."""

    def on_evaluate(self, trainer: Trainer, row: Row) -> None:
        """Run after an evaluation with its row of metrics, equal on all ranks."""

    def on_checkpoint(self, trainer: Trainer, path: Path) -> None:
        """Run on the root after a checkpoint was committed; no other rank holds one, or knows when."""

    def on_fit_end(self, trainer: Trainer, summary: Row) -> None:
        """Run after the last step, evaluation and checkpoint."""

    def close(self) -> None:
        """Release what the callback holds; runs always, also after an error."""


class JsonLines(Callback):
    """Appends every row to ``metrics.jsonl``."""

    def __init__(self, folder: RunFolder | None) -> None:
        """Write into ``folder``; other ranks have none."""
        self._folder = folder

    def on_step_end(self, trainer: Trainer, report: StepReport) -> None:
        """Append the row of training metrics."""
        if report.row is not None and self._folder is not None:
            self._folder.append_row(report.row)

    def on_evaluate(self, trainer: Trainer, row: Row) -> None:
        """Append the row of an evaluation."""
        if self._folder is not None:
            self._folder.append_row(row)
