from __future__ import annotations

import numpy as np
import pytest

from hvdtrain.config import TrainConfig
from hvdtrain.resume import ResumeRequest
from hvdtrain.topology import Topology
from hvdtrain.trace import Trace, TracedStep, read_trace, read_traced_weights
from tests.unit.made_runs import array, traced, write_run
from tests.unit.numpy_trainer import Linear, NumpyTrainer, Samples, squared_error


def test_read_trace_of_a_run_without_one_is_empty(tmp_path):
    assert read_trace(tmp_path) == {}


def test_read_trace_returns_norms_by_samples_seen(tmp_path):
    steps = [traced(1, {"w": 0.5}, {"w": 2.0}), traced(2, {"w": 0.25}, {"w": 3.0})]
    write_run(tmp_path / "run", [], {"w": [1.0]}, trace=steps)
    assert read_trace(tmp_path / "run") == {
        4: TracedStep(1, {"w": 0.5}, {"w": 2.0}),
        8: TracedStep(2, {"w": 0.25}, {"w": 3.0}),
    }


def test_read_traced_weights_returns_what_was_saved_after_a_step(tmp_path):
    steps = [traced(2, {"w": 0.5}, {"w": 5.0})]
    write_run(tmp_path / "run", [], {"w": [1.0]}, trace=steps, saved={2: {"w": [3.0, 4.0]}})
    np.testing.assert_array_equal(read_traced_weights(tmp_path / "run", 2)["w"], array([3.0, 4.0]))


def test_read_traced_weights_of_a_step_that_was_not_saved_is_none(tmp_path):
    assert read_traced_weights(tmp_path, 3) is None


# ---------------------------------------------------------------- what a traced run writes
@pytest.fixture
def traced_run(tmp_path, monkeypatch):
    """The folder of three updates on the one sample x = (1, 0), y = 1, with all weights every two steps."""
    monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", "1")  # fit sets it where it is missing
    trainer = NumpyTrainer(
        Linear(),
        loss=squared_error,
        config=TrainConfig(global_batch_size=1, learning_rate=0.125, epochs=3),
        run_dir=tmp_path / "run",
        trace_every_steps=2,
    )
    trainer.fit(Samples(np.array([[1.0, 0.0]]), np.array([1.0])))
    return tmp_path / "run"


def test_traced_run_holds_the_norms_of_every_step(traced_run):
    # The error 1 halves at each step: the gradient of both parts is 2 error, the rate 1/8, and both move alike.
    norms = {
        seen: (step.global_step, step.grad_norms, step.weight_norms) for seen, step in read_trace(traced_run).items()
    }
    assert norms == {
        1: (1, {"weight": 2.0, "bias": 2.0}, {"weight": 0.25, "bias": 0.25}),
        2: (2, {"weight": 1.0, "bias": 1.0}, {"weight": 0.375, "bias": 0.375}),
        3: (3, {"weight": 0.5, "bias": 0.5}, {"weight": 0.4375, "bias": 0.4375}),
    }


def test_traced_run_holds_all_weights_at_the_start_and_every_two_steps(traced_run):
    saved = {step: read_traced_weights(traced_run, step) for step in range(4)}
    assert {step: tensors and tensors["weight"].tolist() for step, tensors in saved.items()} == {
        0: [0.0, 0.0],
        1: None,
        2: [0.375, 0.0],
        3: None,
    }


def test_trace_on_a_rank_that_is_not_the_root_writes_nothing(tmp_path):
    class Elsewhere:
        topology = Topology(rank=1, size=2)

    trace = Trace(tmp_path, 1)
    trace.on_fit_begin(Elsewhere())
    trace.on_step_end(Elsewhere(), None)
    assert list(tmp_path.iterdir()) == []


def test_trace_of_a_run_that_goes_on_is_cut_back_to_the_restored_step(tmp_path, monkeypatch):
    monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", "1")
    data = Samples(np.array([[1.0, 0.0]]), np.array([1.0]))

    def run(folder, *, resume=None, **settings):
        config = TrainConfig(global_batch_size=1, learning_rate=0.125, epochs=4, save_every_steps=1, **settings)
        trainer = NumpyTrainer(
            Linear(), loss=squared_error, config=config, run_dir=tmp_path / folder, trace_every_steps=2, resume=resume
        )
        trainer.fit(data)

    run("whole")
    run("run", max_steps=2)
    with (tmp_path / "run" / "trace" / "steps.jsonl").open("a") as stream:
        stream.write(
            '{"global_step": 3, "samples_seen": 3, "grad_norms": {}, "weight_norms": {}}\n{"global_step": 4, "sa'
        )
    run("run", resume=ResumeRequest(is_wanted=True))
    texts = [(tmp_path / folder / "trace" / "steps.jsonl").read_text() for folder in ("run", "whole")]
    assert texts[0] == texts[1]
