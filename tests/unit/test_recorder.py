from __future__ import annotations

import json
import math
import time

import pytest

from hvdtrain.noise_scale import NoiseScale
from hvdtrain.recorder import Counters, Recorder
from hvdtrain.step import StepResult


def result_of(loss_sum, weight_sum=2.0, num_samples=2, grad_norm=0.5):
    return StepResult(loss_sum, weight_sum, num_samples, grad_norm, 0, 0)


class Run:
    """Steps a recorder as the loop does."""

    def __init__(self, every, noise_scale=None):
        self.counters = Counters(epoch=1)
        self.recorder = Recorder(self.counters, every, noise_scale)

    def step(self, result, *, is_last=False, lr=0.1):
        self.counters.global_step += 1
        self.counters.samples_seen += result.num_samples
        self.recorder.add(result)
        return self.recorder.train_row(result, lr, is_last_of_epoch=is_last)


def test_row_comes_every_few_steps_and_with_the_last_of_an_epoch():
    run = Run(every=2)
    rows = [run.step(result_of(1.0), is_last=step == 5) for step in range(1, 6)]
    assert [row and row["global_step"] for row in rows] == [None, 2, None, 4, 5]


def test_row_holds_counters_and_the_exact_mean_since_the_last_row():
    run = Run(every=2)
    results = [result_of(6.0, 3.0, 3), result_of(1.0, 1.0, 1), result_of(5.0, 2.0, 2), result_of(3.0, 2.0, 2, 0.25)]
    rows = [run.step(result, lr=0.1 * step) for step, result in enumerate(results, 1)]
    times = [(row.pop("time_s"), row.pop("samples_per_s")) for row in rows if row]
    assert rows[1] == {
        "event": "train",
        "epoch": 1,
        "global_step": 2,
        "samples_seen": 4,
        "loss": 1.75,
        "grad_norm": 0.5,
        "learning_rate": 0.2,
    }
    assert (rows[3]["loss"], rows[3]["grad_norm"], rows[3]["samples_seen"]) == (2.0, 0.25, 8)
    assert times[1][0] > times[0][0] > 0
    assert min(times[0][1], times[1][1]) > 0


def of_shares(grad_norm, share_norms):
    return StepResult(1.0, 4.0, 4, grad_norm, 0, 0, num_shares=2, share_norms=share_norms)


def test_rows_and_summary_tell_the_noise_scale_where_it_is_asked_for():
    run = Run(every=1, noise_scale=NoiseScale())
    rows = [run.step(of_shares(1.0, 6.0)), run.step(of_shares(2.0, 20.0))]
    assert rows[0]["noise_scale"] == pytest.approx(2.0 / 0.5)
    # The past weighs 0.99 of what it did.
    assert rows[1]["noise_scale"] == pytest.approx((0.99 * 2.0 + 4.0) / (0.99 * 0.5 + 3.0))
    assert run.recorder.noise_facts(4)["noise_scale"] == rows[1]["noise_scale"]
    assert Run(every=1, noise_scale=NoiseScale()).step(result_of(1.0))["noise_scale"] is None


def test_nobody_is_told_a_noise_scale_that_nobody_asked_for():
    run = Run(every=1)
    assert "noise_scale" not in run.step(of_shares(1.0, 6.0))
    assert run.recorder.noise_facts(4) == {}
    assert "noise_scale" not in run.recorder.sums()


@pytest.mark.parametrize("is_known", [True, False])
def test_noise_scale_of_a_checkpoint_goes_on_where_there_is_one(is_known):
    first, second = Run(every=1, noise_scale=NoiseScale() if is_known else None), Run(every=1, noise_scale=NoiseScale())
    first.step(of_shares(1.0, 6.0))
    second.recorder.restore(json.loads(json.dumps(first.recorder.sums())))
    expected = (0.99 * 2.0 + 4.0) / (0.99 * 0.5 + 3.0) if is_known else 4.0 / 3.0
    assert second.step(of_shares(2.0, 20.0))["noise_scale"] == pytest.approx(expected)
    Run(every=1).recorder.restore(first.recorder.sums())


def test_row_leaves_out_a_loss_that_is_not_finite():
    run = Run(every=3)
    rows = [run.step(result) for result in (result_of(4.0), result_of(math.nan), result_of(2.0))]
    assert rows[2]["loss"] == 1.5


def test_row_of_steps_without_a_finite_loss_has_none():
    row = Run(every=1).step(result_of(math.inf))
    assert row["loss"] is None


def test_epoch_means_start_anew_with_the_epoch():
    run = Run(every=1)
    run.step(result_of(4.0))
    run.step(result_of(8.0))
    assert run.recorder.epoch_means() == {"loss": 3.0}
    run.recorder.begin_epoch()
    assert run.recorder.epoch_means() == {"loss": None}
    run.step(result_of(1.0))
    assert run.recorder.epoch_means() == {"loss": 0.5}


def test_eval_row_holds_counters_and_means():
    run = Run(every=1)
    run.step(result_of(4.0))
    row = run.recorder.eval_row({"loss": 0.5, "accuracy": None})
    assert row.pop("time_s") > 0
    assert row == {
        "event": "eval",
        "epoch": 1,
        "global_step": 1,
        "samples_seen": 2,
        "loss": 0.5,
        "accuracy": None,
    }


def test_throughput_counts_training_time_alone():
    run = Run(every=1)
    time.sleep(0.2)
    run.step(result_of(1.0, num_samples=100))
    time.sleep(0.2)
    run.recorder.pause(0.2)
    elapsed = run.recorder.elapsed_s()
    assert elapsed >= 0.4
    assert run.recorder.samples_per_s() == pytest.approx(100 / (elapsed - 0.2), rel=0.05)


def test_row_throughput_leaves_out_a_pause():
    run = Run(every=1)
    run.step(result_of(1.0))
    time.sleep(0.4)
    run.recorder.pause(0.3)
    row = run.step(result_of(1.0, num_samples=10))
    assert 10 / 0.2 < row["samples_per_s"] <= 10 / 0.1


def test_recorder_restored_from_its_sums_goes_on_with_row_and_epoch():
    whole, first, second = Run(every=3), Run(every=3), Run(every=3)
    results = [result_of(0.1 * n, n / 3) for n in range(1, 7)]
    rows = [whole.step(result) for result in results]
    for result in results[:4]:
        first.step(result)
    second.recorder.restore(first.recorder.sums())
    second.counters.global_step = 4
    assert [row["loss"] for row in (second.step(result) for result in results[4:]) if row] == [rows[5]["loss"]]
    assert second.recorder.epoch_means() == whole.recorder.epoch_means()


# ---------------------------------------------------------------- the clock
class Clock:
    """Stands in for the seconds of this process, so that a slow first step costs no time."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def steps(run, clock, seconds):
    for pause in seconds:
        clock.now += pause
        run.step(result_of(1.0))


def test_throughput_leaves_out_the_first_step_and_pauses(clock):
    run = Run(every=100)
    run.recorder.start_clock()
    steps(run, clock, [30.0, 0.5, 0.5])
    clock.now += 4.0
    run.recorder.pause(4.0)  # an evaluation
    steps(run, clock, [0.5, 0.5])
    clock.now += 9.0  # the last checkpoint
    assert run.recorder.samples_per_s() == pytest.approx(8 / 2.0)
    assert run.recorder.session() == {
        "steps": 5,
        "time_s": pytest.approx(45.0),
        "samples_per_s": pytest.approx(4.0),
    }


@pytest.mark.parametrize(("seconds", "rate"), [([], 0.0), ([4.0], 0.5)])
def test_throughput_of_a_session_with_no_second_step(clock, seconds, rate):
    run = Run(every=100)
    run.recorder.start_clock()
    steps(run, clock, seconds)
    assert run.recorder.samples_per_s() == run.recorder.session()["samples_per_s"] == rate


def test_continued_run_counts_the_time_of_all_sessions(clock):
    first = Run(every=1)
    first.recorder.start_clock()
    steps(first, clock, [30.0, 1.0, 1.0])
    saved = first.recorder.sums()
    clock.now += 500.0  # work that a kill takes away, and the time until somebody looks
    second = Run(every=1)
    second.recorder.restore(saved)
    second.recorder.start_clock()
    steps(second, clock, [20.0, 3.0])
    recorder = second.recorder
    assert (recorder.elapsed_s(), recorder.run_s()) == (pytest.approx(23.0), pytest.approx(55.0))
    assert recorder.samples_per_s() == pytest.approx((4 + 2) / (2.0 + 3.0))
    assert recorder.session()["samples_per_s"] == pytest.approx(2 / 3.0)
    clock.now += 1.0
    assert second.step(result_of(1.0))["time_s"] == pytest.approx(56.0)
    assert recorder.eval_row({"loss": 1.0})["time_s"] == pytest.approx(56.0)


def test_checkpoint_of_an_earlier_version_knows_no_clock(clock):
    run = Run(every=1)
    saved = run.recorder.sums()
    del saved["clock"]
    run.recorder.restore(saved)
    run.recorder.start_clock()
    clock.now += 2.0
    assert run.recorder.run_s() == pytest.approx(2.0)
