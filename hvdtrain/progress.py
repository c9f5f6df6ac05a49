"""What a person sees of a run: a header, a bar on a terminal or plain lines in a log, and a closing table.

Only the root prints. Everything goes through the ``hvdtrain.progress`` logger, one record per line, so that a
launcher's tag never splits one; the bar alone is drawn on the terminal itself. Under ``hvdtrain launch`` the terminal
belongs to the launcher, which shows the bar as a line below all others.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress

from hvdtrain.callbacks import Callback, Row, StepReport
from hvdtrain.header import closing_lines, header_lines
from hvdtrain.launch.telling import columns_of_launcher, show
from hvdtrain.terminal import WIDEST, columns
from hvdtrain.wording import duration, rate, short

if TYPE_CHECKING:
    from hvdtrain.trainer import Trainer

_log = logging.getLogger("hvdtrain.progress")

#: So many lines of each kind are printed as they come, so that short runs are seen whole; later ones once a second.
_FIRST_LINES = 50
_LINE_EVERY_S = 1.0

_DRAW_EVERY_S = 0.1

#: Through a launcher, which is one more process for every line.
_TELL_EVERY_S = 0.25

#: Columns of the bar itself.
_NARROWEST_BAR, _WIDEST_BAR = 8, 30

#: What a row calls it, and what a line of at most 100 characters has room for.
_SHORT_NAMES = {"grad_norm": "norm", "learning_rate": "lr", "noise_scale": "noise"}
_LESS_IMPORTANT = ("grad_norm", "learning_rate", "noise_scale", "rate")
_NOT_SHOWN = ("event", "epoch", "global_step", "samples_seen", "samples_per_s", "time_s")


class Progress(Callback):
    """Tells how a run goes, on standard error."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing told; ``clock`` returns seconds and only grows."""
        self._clock = clock
        self._left = TimeLeft(clock)
        self._limits = {"train": LineLimit(clock), "eval": LineLimit(clock)}
        self._bar: Bar | LaunchedBar | None = None
        self._last_row: Row | None = None

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Print the header; begin the bar where there is a terminal."""
        if not trainer.topology.is_root or not _log.isEnabledFor(logging.INFO):
            return
        for line in header_lines(trainer):
            _log.info("%s", line)
        self._left.begin(trainer.counters.global_step, trainer._plan.total_steps, trainer.config.max_time_s)
        plan, shown_on = trainer._plan, columns_of_launcher()
        if sys.stderr.isatty():
            self._bar = Bar(plan.total_steps, plan.epochs, self._clock)
        elif shown_on:
            self._bar = LaunchedBar(plan.total_steps, plan.epochs, self._clock, shown_on)

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
        left = self._left.seconds() if row["event"] == "train" else None
        if limit.allows():
            _log.info("%s", line_of(row, left, columns(sys.stderr)))
        elif limit.is_new:
            _log.info("progress: from here on one line a second at most; metrics.jsonl holds every row")


def line_of(row: Row, seconds_left: float | None = None, width: int = WIDEST) -> str:
    """Return one line for a row of metrics; where ``width`` is too small, some of what matters less is left out."""
    parts = {"place": f"{row['event']:<5} epoch {row['epoch']}", "step": f"step {row['global_step']}"}
    parts |= {name: f"{_SHORT_NAMES.get(name, name)} {short(value)}" for name, value in _shown(row).items()}
    if "samples_per_s" in row:
        parts["rate"] = f"{rate(row['samples_per_s'])} samples/s"
    if seconds_left is not None:
        parts["left"] = f"{duration(seconds_left)} left"
    for name in _LESS_IMPORTANT:
        if len("  ".join(parts.values())) > width:
            parts.pop(name, None)
    return "  ".join(parts.values())


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
            self._facts["facts"] = "  ".join(_facts_of(report.row))
        now = self._clock()
        if now - self._drawn >= _DRAW_EVERY_S:
            self._drawn = now
            self._progress.update(self._task, completed=report.global_step, **self._facts)
            self._progress.refresh()

    def close(self) -> None:
        """Take the bar away."""
        _send_log(sys.stderr, self._stream)
        self._progress.stop()


class LaunchedBar:
    """The same as text, some times a second, for the launcher's terminal."""

    def __init__(self, total_steps: int | None, epochs: int | None, clock: Callable[[], float], columns: int) -> None:
        """Tell of a run of ``total_steps`` in at most ``columns``."""
        self._total, self._epochs = total_steps, "" if epochs is None else f"/{epochs}"
        self._clock, self._columns = clock, columns
        self._drawn = -math.inf
        self._facts: list[str] = []

    def move(self, report: StepReport, seconds_left: float | None) -> None:
        """Take one more step, and tell of it unless that was done a moment ago."""
        if report.row is not None:
            self._facts = _facts_of(report.row)
        now = self._clock()
        if now - self._drawn < _TELL_EVERY_S:
            return
        self._drawn = now
        steps = f"{report.global_step:,}" + ("" if self._total is None else f"/{self._total:,}")
        left = [] if seconds_left is None else [f"{duration(seconds_left)} left"]
        share = None if not self._total else report.global_step / self._total
        show(bar_line([f"epoch {report.epoch}{self._epochs}", steps, *left, *self._facts], share, self._columns))

    def close(self) -> None:
        """Take the line away."""
        show("")


def bar_line(words: Sequence[str], share: float | None, columns: int) -> str:
    """Return a line with a bar behind its first word, where there is room for one.

    Args:
        words: What the line says, the most important first; the last ones are left out where there is no room.
        share: Part of the run that is done, from 0 to 1; ``None`` where nobody can tell.
        columns: Width of the terminal, whose last column stays free.

    Example:
        >>> bar_line(["epoch 1/3", "5/10", "0:09 left"], 0.5, 40)
        'epoch 1/3  ━━━━━━       5/10  0:09 left'
        >>> bar_line(["epoch 1/3", "5/10", "0:09 left"], 0.5, 20)
        'epoch 1/3  5/10'
    """
    told = list(words)
    while len(told) > 1 and len("  ".join(told)) >= columns:
        told.pop()
    room = min(columns - 1 - len("  ".join(told)) - 2, _WIDEST_BAR)
    if share is None or room < _NARROWEST_BAR or len(told) < len(words):
        return "  ".join(told)[: columns - 1]
    done = round(min(max(share, 0.0), 1.0) * room)
    return "  ".join([told[0], "━" * done + " " * (room - done), *told[1:]])


def _facts_of(row: Row) -> list[str]:
    """Return what changes with every row, the most important first."""
    loss, lr = short(row["loss"]), short(row["learning_rate"])
    return [f"loss {loss}", f"{rate(row['samples_per_s'])} samples/s", f"lr {lr}"]


def _send_log(before: IO[str], after: IO[str]) -> None:
    """Let handlers that write to one stream write to another: the bar's own prints above the bar."""
    for handler in logging.getLogger("hvdtrain").handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is before:
            handler.setStream(after)
