from __future__ import annotations

import logging
import os
import pty
import re
import select
import sys
from contextlib import contextmanager

import pytest

from hvdtrain.callbacks import StepReport
from hvdtrain.progress import LineLimit, Progress, TimeLeft, line_of
from tests.unit.numpy_trainer import AtStep, make_samples, trainer_of
from tests.unit.test_callbacks import EVAL, RESULT, TRAIN, report_of
from tests.unit.test_callbacks import trainer_of as bare_trainer

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@contextmanager
def on_console(level=logging.INFO):
    """Give the package's logger a handler on standard error, as ``hvdtrain train`` does, and yield it."""
    logger = logging.getLogger("hvdtrain")
    before = logger.handlers, logger.propagate, logger.level
    handler = logging.StreamHandler(sys.stderr)
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)
    try:
        yield handler
    finally:
        logger.handlers, logger.propagate, logger.level = before


# ---------------------------------------------------------------- lines
def test_one_line_per_row(caplog):
    caplog.set_level(logging.INFO, "hvdtrain.progress")
    progress = Progress()
    progress.on_step_end(bare_trainer(), report_of(TRAIN))
    progress.on_step_end(bare_trainer(), report_of(None))
    progress.on_evaluate(bare_trainer(), EVAL)
    assert caplog.messages == [
        "train epoch 1  step 2  loss 0.1235  norm 1.235e+04  lr 0.1",
        "eval  epoch 1  step 3  loss 0.5  accuracy n/a",
    ]


def test_other_ranks_are_silent(caplog):
    caplog.set_level(logging.INFO, "hvdtrain.progress")
    progress = Progress()
    progress.on_fit_begin(bare_trainer(rank=1))
    progress.on_step_end(bare_trainer(rank=1), report_of(TRAIN))
    progress.on_evaluate(bare_trainer(rank=1), EVAL)
    progress.on_fit_end(bare_trainer(rank=1), {})
    assert caplog.messages == []


def test_line_of_a_long_run_fits_100_columns():
    row = {**TRAIN, "epoch": 120, "global_step": 987654, "learning_rate": 0.0001234, "samples_per_s": 123456.0}
    line = line_of({**row, "time_s": 1e6}, seconds_left=90061.0)
    assert line == (
        "train epoch 120  step 987654  loss 0.1235  norm 1.235e+04  lr 0.0001234  123k samples/s  1d 01:01 left"
    )
    assert len(line_of({**row, "epoch": 12, "grad_norm": 1.5}, seconds_left=3723.0)) <= 100


def test_first_lines_come_at_once_and_later_ones_once_a_second(caplog):
    caplog.set_level(logging.INFO, "hvdtrain.progress")
    clock = Clock()
    progress = Progress(clock)
    for _ in range(200):
        progress.on_step_end(bare_trainer(), report_of(TRAIN))
    assert len(caplog.messages) == 51
    assert caplog.messages[-1] == "progress: from here on one line a second at most; metrics.jsonl holds every row"
    progress.on_evaluate(bare_trainer(), EVAL)  # has a measure of its own
    clock.now += 1.0
    for _ in range(200):
        progress.on_step_end(bare_trainer(), report_of(TRAIN))
    assert len(caplog.messages) == 53


def test_line_limit_lets_slow_lines_all_pass():
    clock = Clock()
    limit = LineLimit(clock)
    passed = []
    for _ in range(200):
        passed.append(limit.allows())
        clock.now += 1.5
    assert all(passed)


# ---------------------------------------------------------------- time left
def test_time_left_follows_the_steps_after_the_first():
    clock = Clock()
    left = TimeLeft(clock)
    left.begin(10, 20, None)
    assert left.seconds() is None
    clock.now += 60.0  # the first step builds and traces
    left.move(11)
    assert left.seconds() is None
    clock.now += 2.0
    left.move(12)
    assert left.seconds() == pytest.approx(16.0)
    left.move(20)
    assert left.seconds() == 0.0


def test_time_left_is_never_more_than_the_time_limit():
    clock = Clock()
    left = TimeLeft(clock)
    left.begin(0, None, 30.0)
    clock.now += 12.0
    left.move(1)
    assert left.seconds() == pytest.approx(18.0)
    clock.now += 100.0
    assert left.seconds() == 0.0


def test_time_left_of_a_stream_is_unknown():
    left = TimeLeft(Clock())
    left.begin(0, None, None)
    left.move(1)
    left.move(2)
    assert left.seconds() is None


# ---------------------------------------------------------------- a whole run
@pytest.mark.usefixtures("after_fit")
def test_run_prints_header_rows_and_closing_table(capfd, tmp_path):
    with on_console():
        trainer_of(run_dir=tmp_path / "run").fit(make_samples(10), make_samples(5))
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("hvdtrain ")
    firsts = [line.split()[0] for line in lines]
    assert firsts[1:] == [
        *("ranks", "data", "global", "parameters", "steps", "learning", "memory", "run"),
        *("train", "train", "train", "eval"),
        *("done:", "steps", "train", "evaluation", "throughput", "time", "last", "run"),
    ]
    assert max(map(len, lines)) <= 100 + len(str(tmp_path))
    assert [re.match(r"train epoch 1  step (\d)  loss ", line)[1] for line in lines[9:12]] == ["1", "2", "3"]
    assert not any("\x1b" in line for line in lines)


@pytest.mark.usefixtures("after_fit")
def test_quiet_run_prints_nothing(capfd):
    with on_console(logging.WARNING):
        trainer_of().fit(make_samples(10), make_samples(5))
    assert capfd.readouterr().err == ""


# ---------------------------------------------------------------- on a terminal
class Terminal:
    """Standard error as a terminal of 100 columns, with the package's log on it."""

    def __init__(self, monkeypatch):
        self._patch, self.raw = monkeypatch, ""

    def fit(self, *arguments, callbacks=(), **settings):
        """Fit, and take what the terminal was sent into ``raw``."""
        ours, theirs = pty.openpty()
        with self._patch.context() as patch, os.fdopen(theirs, "w") as self.stream:
            patch.setattr(sys, "stderr", self.stream)
            patch.setenv("TERM", "xterm")
            patch.setenv("COLUMNS", "100")
            with on_console() as handler:
                try:
                    trainer_of(callbacks, **settings).fit(*arguments)
                finally:
                    assert sys.stderr is self.stream
                    assert handler.stream is self.stream
                    self.stream.flush()
                    while select.select([ours], [], [], 0.2)[0]:
                        self.raw += os.read(ours, 1 << 16).decode()
                    os.close(ours)

    @property
    def lines(self):
        """What stands there in the end, line by line, without colours."""
        return [line.split("\r")[-1] for line in CONTROL.sub("", self.raw).split("\r\n")]


@pytest.fixture
def terminal(monkeypatch):
    return Terminal(monkeypatch)


@pytest.mark.usefixtures("after_fit")
def test_terminal_shows_a_bar_and_gets_everything_back(terminal):
    terminal.fit(make_samples(10), make_samples(5), epochs=2)
    text = CONTROL.sub("", terminal.raw)
    assert "epoch 1/2 ━" in text
    assert "0/6" in text
    # One line stays of each epoch, and one of its evaluation; the bar is drawn over.
    assert [" ".join(line.split()[:5]) for line in terminal.lines if line.startswith(("train epoch", "eval"))] == [
        "train epoch 1 step 3",
        "eval epoch 1 step 3",
        "train epoch 2 step 6",
        "eval epoch 2 step 6",
    ]
    assert terminal.lines[-2].startswith("  last epoch  samples used once 10")
    assert terminal.raw.rfind("\x1b[?25h") > terminal.raw.rfind("\x1b[?25l")


@pytest.mark.usefixtures("after_fit")
def test_cursor_is_visible_while_the_bar_stands_and_an_error_ends_it(terminal):
    """A killed process cannot bring the cursor back."""
    during = []

    def fail(trainer):
        during.append(sys.stderr)
        raise LookupError("a fault")

    with pytest.raises(LookupError):
        terminal.fit(make_samples(10), callbacks=[AtStep(fail)])
    assert during[0] is not terminal.stream
    assert "\x1b[?25l\x1b[?25h" in terminal.raw


@pytest.mark.usefixtures("after_fit")
def test_what_is_logged_stands_above_the_bar(terminal):
    def warn(trainer):
        logging.getLogger("hvdtrain.anything").warning("a warning of the run")

    terminal.fit(make_samples(10), callbacks=[AtStep(warn)])
    assert terminal.lines.count("a warning of the run") == 1


def test_step_report_without_a_row_moves_no_line(caplog):
    caplog.set_level(logging.INFO, "hvdtrain.progress")
    Progress().on_step_end(bare_trainer(), StepReport(1, 1, RESULT, None))
    assert caplog.messages == []
