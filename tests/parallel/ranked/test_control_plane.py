"""The control plane and the loop on several ranks; started by ``tests/parallel/test_control_plane.py``."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import pytest

from hvdtrain.batching import BatchSizes
from hvdtrain.callbacks import Callback
from hvdtrain.checkpoint import find_latest
from hvdtrain.config import TrainConfig
from hvdtrain.errors import ConfigError, DataError, ElsewhereError, HvdTrainError, RankError, ReplicaError
from hvdtrain.ledger import Ledger
from hvdtrain.replicas import require_equal_replicas
from hvdtrain.sources import make_source
from hvdtrain.stream import Stream
from tests.harness import assert_on_all_ranks
from tests.unit.numpy_trainer import Linear, NumpyTrainer, Samples, make_samples, squared_error, train_linear


def require_equal(communicator, found, expected):
    """Fail on every rank when the value differs on any."""
    assert_on_all_ranks(communicator, found == expected, f"got {found!r}, expected {expected!r}")


def error_of(action):
    """Return what ``action`` raises, so that its text can be compared on all ranks together."""
    try:
        action()
    except Exception as error:
        return error
    return None


# ---------------------------------------------------------------- collectives
def test_topology_counts_the_ranks_of_this_host(communicator):
    topology, ranks = communicator.topology, communicator.all_gather(communicator.topology.rank)
    size = len(ranks)
    found = (ranks, topology.size, topology.local_rank, topology.local_size, topology.cross_rank, topology.cross_size)
    require_equal(communicator, found, (list(range(size)), size, topology.rank, size, 0, 1))


def test_broadcast_hands_out_the_roots_value(communicator):
    rank = communicator.topology.rank
    require_equal(communicator, communicator.broadcast({"rank": rank}), {"rank": 0})


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32", "uint64"])
def test_allreduce_sum_adds_element_by_element(communicator, dtype):
    rank, size = communicator.topology.rank, communicator.topology.size
    found = communicator.allreduce_sum(np.array([[1, rank], [10 * rank, 2]], dtype=dtype))
    total = size * (size - 1) // 2
    require_equal(communicator, (found.tolist(), str(found.dtype)), ([[size, total], [10 * total, 2 * size]], dtype))


def test_allreduce_sum_of_uint64_wraps_around(communicator):
    size = communicator.topology.size
    found = communicator.allreduce_sum(np.array([1 << 63], dtype=np.uint64))
    require_equal(communicator, found.tolist(), [(size << 63) % (1 << 64)])


def test_is_equal_answers_for_each_element(communicator):
    rank, size = communicator.topology.rank, communicator.topology.size
    found = communicator.is_equal(np.array([7, rank, int(rank == size - 1)], dtype=np.uint64)).tolist()
    require_equal(communicator, found, [True, False, False])


def test_barrier_waits_for_the_last(communicator):
    began = time.monotonic()
    if communicator.topology.rank == communicator.topology.size - 1:
        time.sleep(0.5)
    communicator.barrier()
    assert_on_all_ranks(communicator, time.monotonic() - began >= 0.4, "did not wait")


# ---------------------------------------------------------------- agreement
def test_agree_on_equal_values_passes(communicator):
    found = error_of(lambda: communicator.agree("plan", {"a": 1, "b": [2]}, "Cure."))
    require_equal(communicator, found, None)


def test_agree_on_different_values_names_both_and_the_rank(communicator):
    rank = communicator.topology.rank
    error = error_of(lambda: communicator.agree("plan", {"seed": 3 + min(rank, 1), "same": 1}, "Give all one seed."))
    expected = "plan: ranks must agree on seed (rank 0 has 3, rank 1 has 4). Give all one seed."
    require_equal(communicator, (type(error), str(error), error.is_agreed), (RankError, expected, True))


def test_agree_names_the_lowest_rank_that_differs_and_all_that_it_has(communicator):
    rank, size = communicator.topology.rank, communicator.topology.size
    last = rank == size - 1
    values = {"b": "x" if last else "y", "a": 1.5 if last else 2.5, **({"only": 1} if last else {})}
    error = error_of(lambda: communicator.agree("plan", values, "Cure."))
    expected = (
        f"plan: ranks must agree on a (rank 0 has 2.5, rank {size - 1} has 1.5); b (rank 0 has 'y', rank {size - 1} "
        f"has 'x'); only (rank 0 has None, rank {size - 1} has 1). Cure."
    )
    require_equal(communicator, str(error), expected)


# ---------------------------------------------------------------- together
def test_together_returns_each_ranks_own_result(communicator):
    rank = communicator.topology.rank
    require_equal(communicator, communicator.together(lambda: 10 * rank), 10 * rank)


def test_together_raises_the_lowest_ranks_error_on_all(communicator):
    rank = communicator.topology.rank

    def fail():
        if rank >= 1:
            raise DataError(f"plan: rank {rank} has no file.")

    error = error_of(lambda: communicator.together(fail))
    found = (type(error), str(error), error.is_agreed)
    require_equal(communicator, found, (DataError, "plan: rank 1 has no file.", True))


def test_together_raises_a_foreign_error_where_it_happened_alone(communicator):
    def fail():
        if communicator.topology.rank == 1:
            raise KeyError("no pickle")

    error = error_of(lambda: communicator.together(fail))
    mine, others = (KeyError, "'no pickle'"), (ElsewhereError, "together: rank 1 failed and reports its error.")
    require_equal(communicator, (type(error), str(error)), mine if communicator.topology.rank == 1 else others)


def test_together_leaves_the_ranks_in_step_after_an_error(communicator):
    error_of(lambda: communicator.together(lambda: 1 // communicator.topology.rank))
    require_equal(communicator, communicator.broadcast(communicator.topology.rank), 0)


def test_run_on_root_runs_there_alone_and_returns_its_result_everywhere(communicator):
    ran = []
    found = communicator.run_on_root(lambda: ran.append(1) or communicator.topology.rank + 7)
    require_equal(communicator, (found, len(ran)), (7, int(communicator.topology.is_root)))


def test_run_on_root_raises_its_error_everywhere(communicator):
    def fail():
        raise ConfigError("run folder: no.")

    error = error_of(lambda: communicator.run_on_root(fail))
    require_equal(communicator, (type(error), str(error), error.is_agreed), (ConfigError, "run folder: no.", True))


# ---------------------------------------------------------------- replicas and ledger
def test_equal_replicas_pass(communicator):
    tensors = {"a": np.arange(5.0), "b": np.ones(3, dtype=bool)}
    require_equal(communicator, error_of(lambda: require_equal_replicas("start", tensors, communicator)), None)


def test_replicas_that_differ_are_named_with_their_ranks(communicator):
    rank, size = communicator.topology.rank, communicator.topology.size
    tensors = {name: np.zeros(5, dtype=np.float32) for name in ("a", "b", "c")}
    if rank == size - 1:
        tensors["b"][3] = tensors["c"][0] = 1e-30
    error = error_of(lambda: require_equal_replicas("step 40", tensors, communicator))
    expected = (
        f"step 40: all ranks must hold the same state, got a difference in 'b' between rank 0 and rank {size - 1}; "
        "2 of 3 tensors differ. Something changed weights on some ranks alone, such as a callback."
    )
    require_equal(communicator, (type(error), str(error), error.is_agreed), (ReplicaError, expected, True))


@pytest.mark.ranks(3)
def test_replicas_of_several_ranks_that_differ_from_the_root_are_all_named(communicator):
    tensors = {"w": np.full(2, float(communicator.topology.rank))}
    error = error_of(lambda: require_equal_replicas("start", tensors, communicator))
    expected = (
        "start: all ranks must hold the same state, got a difference in 'w' between rank 0 and ranks 1, 2; "
        "1 of 1 tensors differ. Something changed weights on some ranks alone, such as a callback."
    )
    require_equal(communicator, str(error), expected)


@pytest.mark.parametrize(("extra", "counts"), [(None, (7, 0, 0)), (0, (6, 1, 0))])
def test_ledger_closes_over_ranks(communicator, extra, counts):
    rank, size = communicator.topology.rank, communicator.topology.size
    ledger = Ledger(7)
    ledger.add(np.arange(rank, 7, size))
    if extra is not None and rank == 1:
        ledger.add(np.array([extra]))
    found = ledger.close(np.arange(7), communicator.allreduce_sum)
    require_equal(communicator, found, dict(zip(("once", "more", "never"), counts, strict=True)))


def test_stream_manifest_is_the_same_on_all_ranks(communicator):
    topology = communicator.topology
    config = TrainConfig(global_batch_size=topology.size)
    stream = Stream(lambda shard, num_shards: range(shard, 100, num_shards), 2 * topology.size)
    sizes = BatchSizes(topology.size, 1, 1)
    source = make_source(stream, sizes, topology, config, augment=None, collate=None)
    steps = source.iter_epoch(1, first_step=0, max_steps=None)
    next(steps)
    found = source.position(communicator.allreduce_sum)
    steps.close()
    expected = {"num_shards": 2 * topology.size, "consumed": [1] * topology.size + [0] * topology.size}
    require_equal(communicator, found, expected)


# ---------------------------------------------------------------- the loop
@pytest.fixture
def fit(communicator, monkeypatch):
    """Fit a linear model and return the trainer with its summary."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    def run(data, eval_data=None, *, callbacks=(), run_dir=None, model=None, resume=None, **settings):
        config = {"global_batch_size": 4, "learning_rate": 0.05, "shuffle": False, "log_every_steps": 1, **settings}
        trainer = NumpyTrainer(
            model or Linear(),
            loss=squared_error,
            config=TrainConfig(**config),
            run_dir=run_dir,
            callbacks=callbacks,
            resume=resume,
        )
        trainer.summary = trainer.fit(data, eval_data)
        return trainer

    return run


def require_weights(communicator, trainer, expected):
    found = np.array([*trainer.model.weight, *trainer.model.bias])
    np_ok = np.allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert_on_all_ranks(communicator, np_ok, f"got {found}, expected {expected}")
    bits = communicator.all_gather(found.tobytes())
    require_equal(communicator, len(set(bits)), 1)


@pytest.mark.parametrize(
    ("num_samples", "settings"),
    [
        (12, {}),
        (10, {}),  # a short last batch
        (7, {"batch_size": 1}),  # unequal passes
        (5, {}),  # a last batch of one sample: the other ranks' shares are empty
        (1, {"global_batch_size": 8}),
        (2, {"global_batch_size": 2}),
        (9, {"backward_passes_per_step": 2, "data_workers": 1}),
    ],
)
def test_weights_are_those_of_one_process(communicator, fit, num_samples, settings):
    data = make_samples(num_samples)
    trainer = fit(data, epochs=2, **settings)
    batch = settings.get("global_batch_size", 4)
    batches = [range(start, min(start + batch, num_samples)) for start in range(0, num_samples, batch)] * 2
    expected = train_linear(data.columns["x"], data.columns["y"], batches, lr=0.05)
    require_weights(communicator, trainer, expected)
    counts = (trainer.summary["global_step"], trainer.summary["samples_seen"], trainer.summary["ledger"]["train"])
    ledger = {"once": num_samples, "more": 0, "never": 0}
    require_equal(communicator, counts, (len(batches), 2 * num_samples, ledger))


def test_weights_that_start_different_become_the_roots(communicator, fit):
    rank = communicator.topology.rank
    model = Linear(np.full(2, 1.0 + rank), np.full(1, 2.0 + rank))
    trainer = fit(make_samples(4), model=model, max_steps=0)
    require_weights(communicator, trainer, [1.0, 1.0, 2.0])


@pytest.mark.parametrize("num_samples", [1, 2, 5, 7])
def test_evaluation_counts_every_sample_once(communicator, fit, num_samples):
    targets = np.arange(num_samples, dtype=float)
    trainer = fit(make_samples(4), Samples(np.zeros((num_samples, 2)), targets), max_steps=0)
    found = trainer.summary["eval"]["loss"]
    expected = sum(number**2 for number in range(num_samples)) / num_samples
    assert_on_all_ranks(communicator, abs(found - expected) < 1e-12, f"got {found}, expected {expected}")


def test_stream_that_ends_earlier_on_one_rank_ends_for_all(communicator, fit):
    size = communicator.topology.size
    data = make_samples(3 * size)
    # The last shard holds a single sample, the others three.
    shards = [[data[3 * shard + i] for i in range(1 if shard == size - 1 else 3)] for shard in range(size)]
    trainer = fit(Stream(lambda shard, num_shards: shards[shard]), global_batch_size=size)
    steps = [[3 * shard + i for shard in range(size) if i < len(shards[shard])] for i in range(3)]
    expected = train_linear(data.columns["x"], data.columns["y"], steps, lr=0.05)
    require_weights(communicator, trainer, expected)
    require_equal(communicator, (trainer.summary["global_step"], trainer.summary["samples_seen"]), (3, 3 * size - 2))


# ---------------------------------------------------------------- the noise scale
def noise_scale_of(batches, num_ranks, *, norm_of_share=lambda own, whole: own):
    """Return the estimate after these batches of gradients, arrays ``[samples, dimensions]``, in plain NumPy."""
    grad_sq = noise = 0.0
    for batch in batches:
        parts = [part for part in np.array_split(batch, num_ranks) if len(part)]
        whole = batch.mean(axis=0)
        shares = sum(len(part) * np.sum(norm_of_share(part.mean(axis=0), whole) ** 2) for part in parts)
        if len(parts) > 1:
            trace = (shares - len(batch) * np.sum(whole**2)) / (len(parts) - 1)
            noise = 0.99 * noise + 0.01 * trace
            grad_sq = 0.99 * grad_sq + 0.01 * (np.sum(whole**2) - trace / len(batch))
    return noise / grad_sq


def test_noise_scale_compares_the_shares_of_ranks_and_goes_on_after_a_resume(communicator, fit, shared_tmp_path):
    # At rest at zero, so that every gradient is -2 y (x, 1); batches of 4, 4 and 3 of eleven samples.
    numbers, size = np.arange(11), communicator.topology.size
    data = Samples(np.column_stack([numbers % 3 - 1, numbers % 4 - 2]), numbers % 3 + 3)
    settings = {"noise_scale": True, "learning_rate": 0.0, "epochs": 2}
    whole = fit(data, run_dir=shared_tmp_path / "whole", **settings)
    gradients = -2 * data.columns["y"][:, None] * np.column_stack([data.columns["x"], np.ones(11)])
    batches = [gradients[start : min(start + 4, 11)] for start in (0, 4, 8)] * 2
    expected = noise_scale_of(batches, size)
    found = whole.summary["noise_scale"]
    assert_on_all_ranks(communicator, abs(found - expected) < 1e-9 * expected, f"got {found}, expected {expected}")
    # Negative control: with the norm of the reduced gradient in the place of the share's there is no noise.
    control = noise_scale_of(batches, size, norm_of_share=lambda own, whole: whole)
    assert_on_all_ranks(communicator, abs(control) < 1e-9 < expected, f"got {control}, expected 0")
    fit(data, run_dir=shared_tmp_path / "cut", max_steps=4, **settings)
    again = fit(data, run_dir=shared_tmp_path / "cut", resume=True, **settings)
    require_equal(communicator, again.summary["noise_scale"], found)
    rows = [json.loads(line) for line in (shared_tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()]
    require_equal(communicator, rows[-1]["noise_scale"], found)


class StopOn(Callback):
    def __init__(self, rank):
        self.rank = rank

    def on_step_end(self, trainer, report):
        if trainer.topology.rank == self.rank and report.global_step == 2:
            trainer.request_stop()


def test_request_stop_of_one_rank_stops_all_after_the_next_step(communicator, fit):
    trainer = fit(make_samples(12), callbacks=[StopOn(1)], epochs=5)
    require_equal(communicator, (trainer.summary["global_step"], trainer.calls.count("train_step")), (3, 3))


class Change(Callback):
    def on_step_end(self, trainer, report):
        if trainer.topology.rank == 1:
            trainer.model.weight[1] += 1e-9


def test_weights_that_a_callback_changes_on_one_rank_are_found_before_saving(communicator, fit, shared_tmp_path):
    run_dir = shared_tmp_path / "run"
    error = error_of(lambda: fit(make_samples(4), callbacks=[Change()], run_dir=run_dir))
    expected = (
        "step 1: all ranks must hold the same state, got a difference in 'weight' between rank 0 and rank 1; "
        "1 of 2 tensors differ. Something changed weights on some ranks alone, such as a callback."
    )
    found = (type(error), str(error), error.exit_code, (run_dir / "checkpoints").exists())
    require_equal(communicator, found, (ReplicaError, expected, 5, False))


def test_run_folder_is_written_by_the_root_alone(communicator, fit, shared_tmp_path):
    run_dir = shared_tmp_path / "run"
    trainer = fit(make_samples(10), make_samples(5), run_dir=run_dir)
    communicator.barrier()
    names = sorted(path.name.split(".")[0] for path in run_dir.iterdir())
    require_equal(communicator, names, ["checkpoints", "config", "events", "metrics", "summary"])
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    require_equal(communicator, len(lines), 4)
    manifest = find_latest(run_dir / "checkpoints").manifest
    require_equal(
        communicator, (manifest["size"], manifest["counters"]["global_step"]), (communicator.topology.size, 3)
    )
    require_equal(communicator, trainer.summary["size"], communicator.topology.size)


DIFFERENCES = [
    ({"seed": 1}, 0, "", "seed (rank 0 has 0, rank 1 has 1)"),
    ({}, 1, "", "len(train_data) (rank 0 has 8, rank 1 has 9)"),
    ({}, 0, "other", "job file (rank 0 has '', rank 1 has 'other')"),
]


@pytest.mark.parametrize(("settings", "more", "digest", "told"), DIFFERENCES)
def test_ranks_that_would_start_different_runs_are_refused(communicator, monkeypatch, settings, more, digest, told):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    other = communicator.topology.rank == 1
    config = TrainConfig(global_batch_size=4, **(settings if other else {}))
    trainer = NumpyTrainer(Linear(), loss=squared_error, config=config, job_digest=digest if other else "")
    error = error_of(lambda: trainer.fit(make_samples(8 + more * other)))
    expected = f"plan: ranks must agree on {told}. Give every rank the same job, data and options."
    require_equal(communicator, (isinstance(error, HvdTrainError), str(error)), (True, expected))


def test_agree_takes_names_in_any_order(communicator):
    values = {"a": 1, "b": 2} if communicator.topology.is_root else {"b": 2, "a": 1}
    found = error_of(lambda: communicator.agree("plan", values, "Cure."))
    require_equal(communicator, repr(found), "None")
