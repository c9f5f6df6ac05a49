"""Stop signals: taken over while a run trains, given back after, and what a real process makes of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from hvdtrain import checkpoint
from hvdtrain.errors import StoppedError
from hvdtrain.signals import StopSignals, raise_stopped
from tests.harness import start_command
from tests.unit.numpy_trainer import AtStep, Watcher, make_samples, trainer_of
from tests.unit.resuming import noisy_samples, outcome, resumed, tensors_of, without_clock

STOPPING = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
PROJECT = Path(__file__).parents[2]


def handlers():
    return {number: signal.getsignal(number) for number in STOPPING}


class Ranks:
    """Answers as a communicator whose other ranks got ``numbers``."""

    def __init__(self, *numbers):
        self.numbers = numbers

    def maximum(self, values):
        return np.max([values, *([number] for number in self.numbers)], axis=0)


# ---------------------------------------------------------------- the handler
@pytest.mark.parametrize("number", STOPPING)
def test_first_signal_is_remembered_and_its_handlers_are_given_back(number):
    before = handlers()
    with StopSignals() as signals:
        assert not signals.is_set
        os.kill(os.getpid(), number)
        assert (signals.is_set, signals.number) == (True, number)
        assert handlers() == before
    assert handlers() == before


def test_handlers_are_given_back_without_a_signal():
    before = handlers()
    with StopSignals():
        assert all(handlers()[number] != before[number] for number in STOPPING)
    assert handlers() == before


def test_handlers_are_given_back_when_the_body_raises():
    before = handlers()
    with pytest.raises(KeyError), StopSignals():
        raise KeyError
    assert handlers() == before


def test_second_interrupt_interrupts_at_once():
    def send_two():
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGINT)
            assert signals.is_set
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        send_two()


def test_signals_that_were_ignored_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGINT)
            assert not signals.is_set
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_takes_no_signal_over():
    before, seen = handlers(), []

    def enter():
        with StopSignals():
            seen.append(handlers())

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize(
    ("mine", "others", "agreed"), [(0, (0, 0), 0), (15, (0,), 15), (0, (2, 0), 2), (2, (15,), 15), (10, (15,), 15)]
)
def test_all_ranks_agree_on_the_highest_signal(mine, others, agreed):
    signals = StopSignals()
    signals.number = mine
    assert signals.agree(Ranks(*others)) == agreed


@pytest.mark.parametrize(("number", "name", "code"), [(15, "SIGTERM", 143), (2, "SIGINT", 130), (10, "SIGUSR1", 138)])
def test_raise_stopped_tells_signal_and_step(number, name, code):
    with pytest.raises(StoppedError) as caught:
        raise_stopped(number, 7, Path("run"))
    assert str(caught.value) == f"fit: stopped by {name} after step 7, which is saved. Continue with --resume."
    assert (caught.value.exit_code, caught.value.is_agreed) == (code, True)


def test_raise_stopped_without_a_run_folder_does_not_claim_to_have_saved():
    with pytest.raises(StoppedError) as caught:
        raise_stopped(15, 7, None)
    assert str(caught.value) == "fit: stopped by SIGTERM after step 7, without a run folder to save it in."


# ---------------------------------------------------------------- in a run
RUN = {"epochs": 3, "optimizer": "adam", "shuffle": True, "log_every_steps": 2, "run_dir": "run"}
RUN |= {"decay": "plateau", "plateau_patience": 0, "decay_factor": 0.5}


def signal_in(step, number=signal.SIGTERM, hook="on_step_end"):
    return AtStep(lambda trainer: os.kill(os.getpid(), number), step, hook)


def stop_in(step, *, hook="on_step_end", callbacks=(), **settings):
    """Run with a signal in this step and return the error."""
    with pytest.raises(StoppedError) as caught:
        trainer_of([signal_in(step, hook=hook), *callbacks], **{**RUN, **settings}).fit(
            noisy_samples(10), noisy_samples(7, seed=1)
        )
    return caught.value


@pytest.mark.usefixtures("after_fit")
@pytest.mark.parametrize("step", range(8))
def test_run_stopped_by_a_signal_and_continued_is_the_undisturbed_run(tmp_path, step):
    data, eval_data = noisy_samples(10), noisy_samples(7, seed=1)
    whole = outcome(tmp_path / "whole", trainer_of(**{**RUN, "run_dir": tmp_path / "whole"}).fit(data, eval_data))
    error = stop_in(step, hook="on_step_end" if step else "on_fit_begin")
    # The signal comes after the vote of its step, so the next one is the last; but ranks agree after an epoch too.
    last = step if step in (3, 6) else step + 1
    assert str(error) == f"fit: stopped by SIGTERM after step {last}, which is saved. Continue with --resume."
    assert checkpoint.find_latest(Path("run/checkpoints")).manifest["counters"]["global_step"] == last
    assert not Path("run/summary.json").exists()
    assert outcome("run", resumed(**RUN).fit(data, eval_data)) == whole


@pytest.mark.usefixtures("after_fit")
def test_signal_stops_before_the_next_evaluation():
    watcher = Watcher()
    stop_in(2, callbacks=[watcher])
    assert watcher.seen == [
        *("on_fit_begin", "on_step_end 1.1", "on_step_end 1.2", "on_step_end 1.3"),
        "on_checkpoint step-00000003",
    ]


@pytest.mark.usefixtures("after_fit")
def test_signal_in_the_last_step_leaves_a_run_that_resumes_to_its_summary():
    data, eval_data = noisy_samples(10), noisy_samples(7, seed=1)
    expected = trainer_of(**{**RUN, "run_dir": None}).fit(data, eval_data)
    stop_in(9)
    summary = resumed(**RUN).fit(data, eval_data)
    assert without_clock(summary) == without_clock(expected)
    assert json.loads(Path("run/summary.json").read_text()) == summary


@pytest.mark.usefixtures("after_fit")
def test_signal_without_a_run_folder_ends_the_run():
    error = stop_in(2, run_dir=None)
    assert str(error) == "fit: stopped by SIGTERM after step 3, without a run folder to save it in."


# ---------------------------------------------------------------- real processes
JOB = """
import sys, time
from tests.unit.numpy_trainer import AtStep, Linear, NumpyTrainer, squared_error, make_samples
from hvdtrain import TrainConfig
from hvdtrain.callbacks import Callback
from hvdtrain.resume import ResumeRequest


class Slow(Callback):
    def on_step_end(self, trainer, report):
        print("step", report.global_step, flush=True)
        time.sleep(float(sys.argv[1]))


config = TrainConfig(global_batch_size=4, epochs=3, optimizer="adam", learning_rate=0.05)
resume = ResumeRequest(is_wanted=True)
NumpyTrainer(
    Linear(), loss=squared_error, config=config, run_dir="run", callbacks=[Slow()], resume=resume
).fit(make_samples(10))
"""


def started(pause_s):
    env = {"PYTHONPATH": str(PROJECT), "OMPI_MCA_mpi_yield_when_idle": "1"}
    return start_command([sys.executable, "-c", JOB, str(pause_s)], env=env)


def wait_for_step(job, step):
    limit = time.monotonic() + 30
    while f"step {step}\n" not in job.stdout():
        assert time.monotonic() < limit, job.stderr()
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 138)])
def test_process_that_gets_a_signal_saves_and_ends_with_its_code(number, code):
    with started(0.3) as job:
        wait_for_step(job, 2)
        job.process.send_signal(number)
        finished = job.finish(timeout_s=20)
    name = signal.Signals(number).name
    step = checkpoint.find_latest(Path("run/checkpoints")).manifest["counters"]["global_step"]
    assert finished.stderr.splitlines()[-1] == (
        f"hvdtrain: error: fit: stopped by {name} after step {step}, which is saved. Continue with --resume."
    )
    assert finished.output.count("stopped by") == 1
    assert finished.returncode == code
    assert step in (3, 4)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_ends_the_process_at_once(number):
    with started(20) as job:
        wait_for_step(job, 1)
        job.process.send_signal(number)
        time.sleep(0.3)
        assert job.process.poll() is None
        job.process.send_signal(number)
        finished = job.finish(timeout_s=20)
    assert finished.returncode == -number
    assert finished.seconds < 18
    assert not Path("run/checkpoints").exists()


@pytest.mark.usefixtures("after_fit")
def test_process_killed_between_two_checkpoints_continues_from_the_last():
    with started(0.3) as job:
        wait_for_step(job, 2)
        job.process.send_signal(signal.SIGTERM)
        job.finish(timeout_s=20)
    with started(20) as job:
        wait_for_step(job, 4)
        job.process.send_signal(signal.SIGKILL)
        assert job.finish(timeout_s=20).returncode == -signal.SIGKILL
    with started(0) as job:
        assert job.finish(timeout_s=20).returncode == 0
    trainer_of(run_dir="whole", epochs=3, optimizer="adam", shuffle=True).fit(make_samples(10))
    assert tensors_of("run/checkpoints/step-00000009") == tensors_of("whole/checkpoints/step-00000009")


# ---------------------------------------------------------------- through the launcher
@pytest.mark.skipif(shutil.which("mpirun") is None and "HVDTRAIN_REQUIRE" not in os.environ, reason="needs mpirun")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_stop_through_the_launcher_names_the_signal_that_the_launcher_got_once(number):
    Path("job.py").write_text(JOB)
    words = [sys.executable, "-m", "hvdtrain", "launch", "-np", "2", "--", "python", "job.py", "0.3"]
    env = {"PYTHONPATH": str(PROJECT), "OMPI_MCA_mpi_yield_when_idle": "1"}
    with start_command(words, env=env) as job:
        wait_for_step(job, 2)
        job.process.send_signal(number)
        finished = job.finish(timeout_s=20)
    name, lines = signal.Signals(number).name, finished.stderr.splitlines()
    told = [line for line in lines if "stopped by" in line]
    step = checkpoint.find_latest(Path("run/checkpoints")).manifest["counters"]["global_step"]
    assert told == [
        f"hvdtrain: error: fit: stopped by {name} after step {step}, which is saved. Continue with --resume."
    ]
    assert lines[0].startswith("launch: starts 2 ranks: python job.py 0.3; ")
    assert f"launch: {name}: training ranks finish their step and save, others end; a second ends all" in lines
    assert finished.returncode == 128 + number
