"""What a person sees of a run: a header, a bar on a terminal or plain lines in a log, and a closing table.

Only the root prints. Everything goes through the ``hvdtrain.progress`` logger, one record per line, so that a
launcher's tag never splits one; the bar alone is drawn on the terminal itself.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress

from hvdtrain.callbacks import Callback, Row, StepReport
from hvdtrain.header import closing_lines, header_lines
from hvdtrain.wording import duration, rate, short

if TYPE_CHECKING:
    from hvdtrain.trainer import Trainer

_log = logging.getLogger("hvdtrain.progress")

#: So many lines of each kind are printed as they come, so that short runs are seen whole; later ones once a second.
_FIRST_LINES = 50
_LINE_EVERY_S = 1.0

_DRAW_EVERY_S = 0.1

#: What a row calls it, and what a line of at most 100 characters has room for.
_SHORT_NAMES = {"grad_norm": "norm", "learning_rate": "lr"}
_NOT_SHOWN = ("event", "epoch", "global_step", "samples_seen", "samples_per_s", "time_s")


class Progress(Callback):
    """Tells how a run goes, on standard error."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing told; ``clock`` returns seconds and only grows."""
        self._clock = clock
        self._left = TimeLeft(clock)
        self._limits = {"train": LineLimit(clock), "eval": LineLimit(clock)}
        self._bar: Bar | None = None
        self._last_row: Row | None = None

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Print the header; begin the bar where there is a terminal."""
        if not trainer.topology.is_root or not _log.isEnabledFor(logging.INFO):
            return
        for line in header_lines(trainer):
            _log.info("%s", line)
        self._left.begin(trainer.counters.global_step, trainer._plan.total_steps, trainer.config.max_time_s)
        if sys.stderr.isatty():
            self._bar = Bar(trainer._plan.total_steps, trainer._plan.epochs, self._clock)

    def on_step_end(self, trainer: Trainer, report: StepReport) -> None:
        """Move on, and print the row of training metrics."""
        if not trainer.topology.is_root:
            return
        self._left.move(report.global_step)
        self._last_row = report.row or self._last_row
        if self._bar is not None:
            self._bar.move(report, self._left.seconds())
        elif report.row is not None:
            self._print(report.row)

    def on_epoch_end(self, trainer: Trainer, epoch: int) -> None:
        """Leave a line for the epoch above the bar, which keeps none."""
        if self._bar is not None and self._last_row is not None:
            self._print(self._last_row)

    def on_evaluate(self, trainer: Trainer, row: Row) -> None:
        """Print the row of an evaluation."""
        if trainer.topology.is_root:
            self._print(row)

    def on_fit_end(self, trainer: Trainer, summary: Row) -> None:
        """Take the bar away, and print the closing table."""
        self.close()
        if trainer.topology.is_root:
            for line in closing_lines(summary, trainer):
                _log.info("%s", line)

    def close(self) -> None:
        """Give the terminal back."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _print(self, row: Row) -> None:
        limit = self._limits[row["event"]]
        if limit.allows():
            _log.info("%s", line_of(row, self._left.seconds() if row["event"] == "train" else None))
        elif limit.is_new:
            _log.info("progress: from here on one line a second at most; metrics.jsonl holds every row")


def line_of(row: Row, seconds_left: float | None = None) -> str:
    """Return one line for a row of metrics, within 100 characters for numbers of usual length."""
    parts = [f"{row['event']:<5} epoch {row['epoch']}", f"step {row['global_step']}"]
    parts += [f"{_SHORT_NAMES.get(name, name)} {short(value)}" for name, value in _shown(row).items()]
    if "samples_per_s" in row:
        parts.append(f"{rate(row['samples_per_s'])} samples/s")
    if seconds_left is not None:
        parts.append(f"{duration(seconds_left)} left")
    return "  ".join(parts)


def _shown(row: Row) -> Mapping[str, Any]:
    return {name: value for name, value in row.items() if name not in _NOT_SHOWN}


class LineLimit:
    """Lets the first lines pass as they come, and then one a second.

    Attributes:
        is_new: Whether the line held back last was the first one.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin with none printed."""
        self._clock = clock
        self._printed = self._held_back = 0
        self._last = 0.0

    @property
    def is_new(self) -> bool:
        """Whether the line held back last was the first one."""
        return self._held_back == 1

    def allows(self) -> bool:
        """Return whether the next line may be printed now."""
        now = self._clock()
        if self._printed >= _FIRST_LINES and now - self._last < _LINE_EVERY_S:
            self._held_back += 1
            return False
        self._printed += 1
        self._last = now
        return True


class TimeLeft:
    """How long a run still takes, from the steps of this process; evaluations and saves count with them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Know nothing yet."""
        self._clock = clock
        self._total: int | None = None
        self._ends_at: float | None = None
        self._first: tuple[int, float] | None = None
        self._step = 0

    def begin(self, step: int, total_steps: int | None, max_time_s: float | None) -> None:
        """Take where the run stands and where it ends."""
        self._step, self._total = step, total_steps
        self._ends_at = None if max_time_s is None else self._clock() + max_time_s

    def move(self, step: int) -> None:
        """Take one more step; the first one builds and traces, so the clock starts behind it."""
        self._step = step
        if self._first is None:
            self._first = (step, self._clock())

    def seconds(self) -> float | None:
        """Return the seconds left, ``None`` while nobody can tell."""
        now = self._clock()
        limits = [] if self._ends_at is None else [max(self._ends_at - now, 0.0)]
        if self._total is not None and self._first is not None and self._step > self._first[0]:
            step, began = self._first
            limits.append((self._total - self._step) * (now - began) / (self._step - step))
        return min(limits) if limits else None


class Bar:
    """One line on a terminal that is drawn anew, without a thread; what is logged meanwhile goes above it."""

    def __init__(self, total_steps: int | None, epochs: int | None, clock: Callable[[], float]) -> None:
        """Draw the bar of a run of ``total_steps``, ``None`` where nobody can tell."""
        self._clock, self._epochs = clock, "" if epochs is None else f"/{epochs}"
        self._drawn = 0.0
        self._facts: dict[str, Any] = {"epoch": f"1{self._epochs}", "facts": "", "left": ""}
        self._stream = sys.stderr
        self._progress = RichProgress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed}" + ("" if total_steps is None else "/{task.total}")),
            TextColumn("{task.fields[facts]}"),
            TextColumn("{task.fields[left]}"),
            console=Console(file=sys.stderr),
            auto_refresh=False,
            transient=True,
            expand=True,
        )
        self._progress.start()
        self._progress.console.show_cursor(True)  # a killed process could not bring it back
        self._task: TaskID = self._progress.add_task("", total=total_steps, **self._facts)
        _send_log(self._stream, sys.stderr)

    def move(self, report: StepReport, seconds_left: float | None) -> None:
        """Take one more step, and draw it unless that was done a moment ago."""
        self._facts["epoch"] = f"{report.epoch}{self._epochs}"
        self._facts["left"] = "" if seconds_left is None else f"{duration(seconds_left)} left"
        if report.row is not None:
            row = report.row
            self._facts["facts"] = (
                f"loss {short(row['loss'])}  lr {short(row['learning_rate'])}  {rate(row['samples_per_s'])} samples/s"
            )
        now = self._clock()
        if now - self._drawn >= _DRAW_EVERY_S:
            self._drawn = now
            self._progress.update(self._task, completed=report.global_step, **self._facts)
            self._progress.refresh()

    def close(self) -> None:
        """Take the bar away."""
        _send_log(sys.stderr, self._stream)
        self._progress.stop()


def _send_log(before: IO[str], after: IO[str]) -> None:
    """Let handlers that write to one stream write to another: the bar's own prints above the bar."""
    for handler in logging.getLogger("hvdtrain").handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is before:
            handler.setStream(after)
