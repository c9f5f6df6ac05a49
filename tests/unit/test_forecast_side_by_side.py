from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

import hvdtrain.forecast.side_by_side as side_by_side
from hvdtrain.errors import StallError
from hvdtrain.forecast.dry_job import Head, write_job
from hvdtrain.forecast.side_by_side import Company, SideBySide
from hvdtrain.job import load_job
from hvdtrain.job_options import GivenOptions

JOB = """
import hvdtrain
config = hvdtrain.TrainConfig(batch_size=1)
SIZE = hvdtrain.option("size", 3)
_helper = SIZE + 1
def train_data(): return [_helper]
def eval_data(): return list(range(1000))
def torch_model(): return None
"""


class Stopped:
    def __init__(self):
        self.at = None

    def request_stop(self):
        self.at = self.at or time.monotonic()


def walk(callback, trainer, pause, log):
    """Make steps until the callback asks to stop; keep the time of each."""
    for step in range(1, 10_000):
        time.sleep(pause)
        log.append(time.monotonic())
        callback.on_step_end(trainer, SimpleNamespace(global_step=step))
        if trainer.at:
            return


def test_counted_steps_begin_together_and_all_have_company(tmp_path):
    logs, trainers = ([], []), (Stopped(), Stopped())
    threads = []
    for index, pause in enumerate((0.001, 0.02)):
        company = Company(tmp_path, index, 2, warm_up=3, num_steps=5, seconds=0.0)
        arguments = (SideBySide(company), trainers[index], pause, logs[index])
        threads.append(threading.Thread(target=walk, args=arguments))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    quick, slow = logs
    assert quick[3] >= slow[2]  # the quick one's fourth step waits until the slow one has warmed up
    assert len(slow) >= 8
    assert quick[-1] >= slow[7] - 0.02  # the quick one goes on until the slow one has made its steps


def test_a_quick_job_goes_on_for_the_time_asked_for(tmp_path):
    log, trainer = [], Stopped()
    walk(SideBySide(Company(tmp_path, 0, 1, warm_up=1, num_steps=2, seconds=0.2)), trainer, 0.001, log)
    assert log[-1] - log[0] >= 0.2


def test_company_that_never_comes_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(side_by_side, "_WAIT_S", 0.05)
    callback = SideBySide(Company(tmp_path, 0, 2, warm_up=1, num_steps=1, seconds=0.0))
    with pytest.raises(StallError, match="all dry runs must warm up within 0 s"):
        callback.on_step_end(Stopped(), SimpleNamespace(global_step=1))


def test_the_dry_job_is_the_users_with_a_short_evaluation_and_one_more_callback(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    company = Company(tmp_path, 1, 2, 3, 4, 5.0)
    write_job(tmp_path / "job.py", company, tmp_path / "dry.py")
    options = GivenOptions({"size": "7"})
    loaded = load_job(tmp_path / "dry.py", options)
    options.require_all_asked()  # the user's own option reaches the user's file
    assert loaded.config.batch_size == 1
    assert loaded.required("train_data")() == [8]
    assert loaded.frameworks == []
    assert len(loaded.required("eval_data")()) == 256
    (callback,) = loaded.required("callbacks")()
    assert callback._company == company


def test_a_short_evaluation_stays_as_it_is():
    assert [Head("abc")[i] for i in range(len(Head("abc")))] == ["a", "b", "c"]
