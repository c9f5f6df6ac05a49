from __future__ import annotations

import fcntl
import logging
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hvdtrain.callbacks import StepReport
from hvdtrain.progress import LaunchedBar, LineLimit, Progress, TimeLeft, bar_line, line_of
from tests.unit.numpy_trainer import AtStep, make_samples, trainer_of
from tests.unit.test_callbacks import EVAL, RESULT, TRAIN, report_of
from tests.unit.test_callbacks import trainer_of as bare_trainer

PROJECT = Path(__file__).parents[2]
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
def test_line_with_a_noise_scale_stays_within_its_width():
    row = {**TRAIN, "epoch": 12, "global_step": 12345, "samples_per_s": 12345.6, "noise_scale": 1234.5678}
    line = line_of({**row, "loss": 1.234, "learning_rate": 0.0123}, 3723.0)
    assert "  noise 1235  " in line
    assert len(line) <= 100
    assert "  noise n/a" in line_of({**TRAIN, "noise_scale": None})


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
    assert line == "train epoch 120  step 987654  loss 0.1235  lr 0.0001234  123k samples/s  1d 01:01 left"
    assert len(line_of({**row, "epoch": 12, "grad_norm": 1.5}, seconds_left=3723.0)) <= 100


@pytest.mark.parametrize(
    ("width", "told"),
    [(100, {"norm", "lr", "rate"}), (80, {"lr", "rate"}), (70, {"rate"}), (55, set())],
)
def test_line_on_a_narrow_terminal_leaves_out_what_matters_less(width, told):
    row = {**TRAIN, "epoch": 12, "global_step": 9876, "learning_rate": 0.0123, "samples_per_s": 12345.0}
    line = line_of(row, 3723.0, width)
    assert len(line) <= width
    assert {name for name, text in (("norm", "norm 1"), ("lr", "lr 0"), ("rate", "samples/s")) if text in line} == told
    assert "loss 0.1235" in line
    assert line.endswith("1:02:03 left")


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
        *("done:", "steps", "train", "evaluation", "throughput", "time", "memory", "last", "run"),
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


# ---------------------------------------------------------------- under a launcher
def test_launcher_is_told_a_line_some_times_a_second_and_its_end(capfd):
    clock = Clock()
    bar = LaunchedBar(10, 2, clock, 100)
    for step in range(1, 11):
        bar.move(StepReport(step, 1, RESULT, {**TRAIN, "samples_per_s": 512.0}), 9.0)
        clock.now += 0.1
    bar.close()
    lines = capfd.readouterr().err.split("\n")[:-1]
    assert len(lines) == 5
    assert all(line.startswith("\x1ehvdtrain: show ") for line in lines)
    assert lines[-1] == "\x1ehvdtrain: show "
    assert "1/10  0:09 left  loss 0.1235  512 samples/s  lr 0.1" in lines[0]


@pytest.mark.parametrize(
    ("columns", "end"),
    [(100, "lr 0.0001"), (80, "lr 0.0001"), (70, "samples/s"), (60, "loss 0.1235"), (40, "0:12 left")],
)
def test_line_of_the_bar_fits_the_terminal(columns, end):
    words = ["epoch 1/12", "120/276", "0:12 left", "loss 0.1235", "12.3k samples/s", "lr 0.0001"]
    line = bar_line(words, 120 / 276, columns)
    assert len(line) <= columns - 1
    assert ("━" in line) == (columns > 80)
    assert line.startswith("epoch 1/12  ")
    assert line.endswith(end)


def test_bar_of_a_stream_is_words_alone():
    assert bar_line(["epoch 1", "7"], None, 100) == "epoch 1  7"


@pytest.mark.skipif(shutil.which("mpirun") is None and "HVDTRAIN_REQUIRE" not in os.environ, reason="needs mpirun")
def test_launch_on_a_terminal_shows_the_bar_below_whole_lines(tmp_path):
    """A real launch of two ranks on a pseudo-terminal of 80 columns; its screen is read as a person sees it."""
    job = tmp_path / "job.py"
    job.write_text(
        "import time\nfrom hvdtrain.callbacks import Callback\n"
        "from hvdtrain import TrainConfig\nfrom hvdtrain.train_job import _log_to_console\n"
        "from hvdtrain.communicator import connect\n"
        "from tests.unit.numpy_trainer import Linear, NumpyTrainer, make_samples, squared_error\n"
        "_log_to_console(connect(), is_quiet=False)\n"
        "config = TrainConfig(global_batch_size=4, epochs=2)\n"
        "class Slow(Callback):\n    def on_step_end(self, trainer, report): time.sleep(0.3)\n"
        "trainer = NumpyTrainer(Linear(), loss=squared_error, config=config, run_dir='run', callbacks=[Slow()])\n"
        "trainer.fit(make_samples(10))\n"
    )
    words = [sys.executable, "-m", "hvdtrain", "launch", "-np", "2", "--", "python", str(job)]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(PROJECT), "OMPI_MCA_mpi_yield_when_idle": "1"}
    process = subprocess.Popen(words, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=env, cwd=tmp_path)
    os.close(theirs)
    raw = b""
    with suppress(OSError):  # the terminal closes with its last process
        while piece := os.read(ours, 1 << 16):
            raw += piece
    os.close(ours)
    assert process.wait(timeout=60) == 0, raw.decode()
    text = raw.decode()
    assert "\x1e" not in text
    assert "epoch 1/2  " in text
    assert "━" in text
    lines = [CONTROL.sub("", line).split("\r")[-1] for line in text.split("\r\n")]
    assert max(map(len, lines)) <= 80, lines
    begins = [" ".join(line.split()[:5]) for line in lines if line.startswith("train epoch")]
    assert begins == ["train epoch 1 step 3", "train epoch 2 step 6"]  # what a bar leaves, as in one process
    assert lines[-1] == ""
