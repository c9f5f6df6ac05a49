"""Unusual models, threads, memory and run folders on real ranks: cases 10, 37, 42, 45, 55, 56, 58 and 60."""

from __future__ import annotations

import importlib
import json
import os

import numpy as np
import psutil
import pytest

from hvdtrain.callbacks import Callback
from tests.harness import assert_on_all_ranks
from tests.parallel.fitting import Fitter, run_files, snapshot
from tests.parallel.reference import toy_weight

TOLERANCE = 1e-6


@pytest.fixture
def toy(adapter, communicator):
    return Fitter(importlib.import_module(f"tests.parallel.toy_{adapter}"), communicator)


def close(expected):
    return pytest.approx(expected, abs=TOLERANCE, rel=TOLERANCE)


# ---------------------------------------------------------------- 42, 45, 60: models


def test_case_42_bool_buffer_becomes_that_of_the_root(toy):
    mask = np.array([True, False, True]) if toy.rank == 0 else np.array([False, False, False])
    run = toy.fit([1.0, 2.0], model=lambda: toy.toy.Toy(fixed={"mask": mask}), global_batch_size=2)
    assert run.weights["mask"].tolist() == [True, False, True]
    assert run.weights["mask"].dtype == bool
    assert run.w == close(-0.15)


def test_case_45_model_called_twice_adds_both_gradients(toy):
    def twice(model, batch):
        return model(batch["x"]) + model(2 * batch["x"])

    assert toy.fit([1.0, 2.0], loss=twice, global_batch_size=2).w == close(-0.45)


def test_case_45_two_losses_summed_add_both_gradients(toy):
    def two(model, batch):
        y = model(batch["x"])
        return y + 0.5 * (y - 1.0) ** 2

    # w = 0: the gradient is the mean of x + x (w x - 1), which is 0 for every x.
    # w = 1: x + x (x - 1) = x^2, mean 2.5.
    assert toy.fit([1.0, 2.0], loss=two, global_batch_size=2).w == close(0.0)
    assert toy.fit([1.0, 2.0], model=lambda: toy.toy.Toy(1.0), loss=two, global_batch_size=2).w == close(0.75)


def test_case_45_tied_weights_add_both_gradients(toy):
    run = toy.fit([1.0, 2.0], model=toy.toy.Tied, global_batch_size=2)
    assert {name: values.tolist() for name, values in run.weights.items()} == {"first.weight": [[close(-0.3)]]}


def test_case_60_doubled_parameter_is_refused_on_all_ranks(toy):
    model, optimizer = toy.toy.twice_named()
    trainer = toy.trainer(model, optimizer=optimizer, global_batch_size=1)
    with pytest.raises(ValueError, match=r" got twice: (twice_named/)?w\. ?") as caught:
        trainer.fit([{"x": np.float32(1)}])
    assert caught.value.exit_code == 2


@pytest.mark.ranks(1, 2)
def test_parameter_that_one_rank_does_not_use_counts_as_zero_there(toy):
    # Where no x is large, the loss leaves w out.
    assert toy.fit([1.0, 2.0], loss=toy.toy.only_large, global_batch_size=2).w == close(-0.1)


def test_case_10_in_eager_mode_gives_the_mean_gradient(toy):
    with toy.toy.eager():
        assert toy.fit([1.0, 2.0], global_batch_size=2, max_steps=1).w == close(-0.15)


# ---------------------------------------------------------------- 55, 56: threads and run folders


def test_case_55_ranks_share_the_cores(toy):
    # The driver takes OMP_NUM_THREADS away for this file.
    assert "OMP_NUM_THREADS" not in os.environ
    toy.fit([1.0, 2.0], global_batch_size=2)
    expected = max(1, len(os.sched_getaffinity(0)) // toy.size)
    assert_on_all_ranks(toy.communicator, toy.toy.threads() == expected, f"has {toy.toy.threads()} threads")


class _Reads(Callback):
    """Reads the rows of metrics while training runs."""

    def __init__(self, folder, is_root):
        self._file = folder / "metrics.jsonl"
        self._is_root = is_root
        self.counts = []

    def on_step_end(self, trainer, report):
        if self._is_root:
            lines = self._file.read_text().splitlines() if self._file.exists() else []
            self.counts.append(len([json.loads(line) for line in lines]))


def test_case_56_twenty_run_folders_hold_one_file_of_each_kind(toy, shared_tmp_path):
    for number in range(20):
        folder = shared_tmp_path / f"run-{number}"
        reads = _Reads(folder, toy.rank == 0)
        arguments = {"global_batch_size": 1, "log_every_steps": 1, "run_dir": folder, "callbacks": [reads]}
        run = toy.fit([1.0, 2.0, 3.0], eval_samples=[1.0], epochs=1, **arguments)
        written = [name for name in run_files(folder) if name != "startup.log"]  # what a framework said, if anything
        names = [name if "tfevents" not in name else "events" for name in written]
        assert names == ["checkpoints", "config.json", "events", "metrics.jsonl", "summary.json"]
        assert_on_all_ranks(toy.communicator, reads.counts in ([], [1, 2, 3]), f"rows seen in the run: {reads.counts}")
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [(row["event"], row["global_step"]) for row in rows] == [
            ("train", 1),
            ("train", 2),
            ("train", 3),
            ("eval", 3),
        ]
        written = json.loads((folder / "summary.json").read_text())
        # Times are each rank's own; the file holds the root's.
        assert_on_all_ranks(toy.communicator, written == run.summary or toy.rank, f"not in the file: {run.summary}")


class _Watches(Callback):
    """Keeps the memory and the child processes of this rank at some steps."""

    def __init__(self, *steps):
        self._steps = steps
        self.bytes, self.children = [], []

    def on_step_end(self, trainer, report):
        if report.global_step in self._steps:
            process = psutil.Process()
            self.bytes.append(process.memory_info().rss)
            self.children += process.children(recursive=True)


def test_case_58_two_thousand_steps_need_no_more_memory_than_two_hundred(toy, shared_tmp_path):
    watches = _Watches(200, 2000)
    # 50 steps an epoch, the last one of 7 samples, of two passes each; everything that a run writes is written.
    settings = {"global_batch_size": 8, "batch_size": 2, "epochs": 40, "data_workers": 2, "log_every_steps": 10}
    run = toy.fit([1.0] * 399, run_dir=shared_tmp_path / "long", callbacks=[watches], **settings)
    assert run.trainer.counters.global_step == 2000
    early, late = watches.bytes
    assert_on_all_ranks(toy.communicator, late - early < 20e6, f"grew by {late - early:,} bytes")
    # The workers are threads: to fork after MPI has started is unsafe.
    assert_on_all_ranks(toy.communicator, watches.children == [], f"has child processes {watches.children}")


# Last, because where it fails it ends the launch.
def test_case_37_fit_twice_with_one_trainer_starts_anew_on_the_same_model(toy):
    model = toy.toy.Toy()
    trainer = toy.trainer(model, global_batch_size=2, momentum=0.9)
    samples = [{"x": np.float32(x)} for x in (1.0, 2.0, 3.0)]
    first = trainer.fit(samples)
    one, _ = snapshot(trainer)
    second = trainer.fit(samples)
    two, _ = snapshot(trainer)
    # The momentum of the first fit is not carried over, the weight is, because the model is the user's.
    expected = toy_weight([1.0, 2.0, 3.0], 2, momentum=0.9)
    assert (float(one["w"]), float(two["w"])) == (close(expected), close(2 * expected))
    assert first["global_step"] == second["global_step"] == 2
