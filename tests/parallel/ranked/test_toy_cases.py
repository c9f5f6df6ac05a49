"""Cases 1 to 30 on real ranks, with values worked out by hand or in NumPy for one process."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from hvdtrain.checkpoint import load
from hvdtrain.errors import DataError, ReplicaError
from tests.harness import assert_on_all_ranks
from tests.parallel.fitting import AtEnd, Fitter, Recorded, Steps, loss, snapshot
from tests.parallel.reference import toy_weight

TOLERANCE = 1e-6


@pytest.fixture
def toy(adapter, communicator):
    return Fitter(importlib.import_module(f"tests.parallel.toy_{adapter}"), communicator)


def close(expected):
    return pytest.approx(expected, abs=TOLERANCE, rel=TOLERANCE)


# ---------------------------------------------------------------- 1, 2, 6: uneven work


@pytest.mark.ranks(2)
def test_case_1_ten_samples_batch_two_makes_six_steps(toy):
    run = toy.fit(range(1, 11), batch_size=2, epochs=2)
    # Batches 1-4, 5-8, 9-10 with means 2.5, 6.5, 9.5, twice.
    assert (run.trainer.counters.global_step, run.trainer.counters.samples_seen) == (6, 20)
    assert run.w == close(-3.7)


@pytest.mark.parametrize("num_samples", [5, 10, 11])
def test_uneven_shuffled_epochs_equal_one_process(toy, num_samples):
    samples = [float(x * x) for x in range(num_samples)]
    run = toy.fit(samples, global_batch_size=4, epochs=3, shuffle=True, seed=7, momentum=0.5)
    assert run.w == close(toy_weight(samples, 4, epochs=3, seed=7, momentum=0.5))
    assert run.summary["ledger"]["train"] == {"once": num_samples, "more": 0, "never": 0}


def test_case_2_seven_samples_are_evaluated_each_epoch_once(toy):
    held_out = Recorded([float(x) for x in range(7)])
    watch = Steps()
    run = toy.fit(range(1, 8), eval_samples=held_out, global_batch_size=2, epochs=2, callbacks=[watch])
    read = toy.communicator.all_gather(held_out.accessed)
    assert sorted(row for rows in read for row in rows) == sorted([*range(7)] * 2)
    # An epoch moves w by -0.1 (1.5 + 3.5 + 5.5 + 7); the mean of 0..6 is 3.
    assert [row["loss"] for row in watch.eval_rows] == [close(-1.75 * 3), close(-3.5 * 3)]
    assert [row["epoch"] for row in watch.eval_rows] == [1, 2]
    assert run.summary["eval"] == {"loss": close(-10.5)}
    assert run.summary["ledger"]["eval"] == {"once": 7, "more": 0, "never": 0}


@pytest.mark.parametrize("num_samples", [1, 2])
def test_case_6_fewer_training_samples_than_ranks_train_with_empty_shares(toy, num_samples):
    run = toy.fit([3.0, 5.0][:num_samples], global_batch_size=8, epochs=2)
    assert run.trainer.counters.global_step == 2
    assert run.w == close({1: -0.6, 2: -0.8}[num_samples])


@pytest.mark.parametrize("num_samples", [1, 2])
def test_case_6_fewer_evaluation_samples_than_ranks_give_their_mean(toy, num_samples):
    run = toy.fit([1.0] * 6, eval_samples=[2.0, 4.0][:num_samples], global_batch_size=6)
    assert run.summary["eval"] == {"loss": close({1: -0.2, 2: -0.3}[num_samples])}


@pytest.mark.parametrize(
    ("name", "lengths"), [("train_data", (0, None)), ("train_data", (0, 2)), ("eval_data", (2, 0))]
)
def test_case_6_no_samples_are_refused_on_all_ranks(toy, name, lengths):
    train, held_out = ([1.0] * n if n is not None else None for n in lengths)
    with pytest.raises(DataError) as caught:
        toy.fit(train, eval_samples=held_out, global_batch_size=2)
    assert str(caught.value) == (
        f"plan: {name} must hold at least 1 sample, got 0. Check the path or the filter that made it."
    )
    assert caught.value.exit_code == 2


# ---------------------------------------------------------------- 10, 13, 16: synchronised


def test_case_10_rank_dependent_data_gives_the_mean_gradient(toy):
    assert toy.fit([1.0, 2.0], global_batch_size=2, max_steps=1).w == close(-0.15)


@pytest.mark.ranks(2)
def test_case_10_without_reduction_ranks_differ_and_the_replica_check_says_so(toy):
    trainer = toy.trainer(kind="LocalTrainer", global_batch_size=2, max_steps=1)
    with pytest.raises(ReplicaError) as caught:
        trainer.fit([{"x": np.float32(1)}, {"x": np.float32(2)}])
    w = float(trainer.export_state().weights["w"])
    assert toy.communicator.all_gather(w) == [close(-0.1), close(-0.2)]
    assert str(caught.value) == (
        "step 1: all ranks must hold the same state, got a difference in 'w' between rank 0 and rank 1; 1 of 1 "
        "tensors differ. Something changed weights on some ranks alone, such as a callback."
    )
    assert caught.value.exit_code == 5


def test_case_13_zero_steps_save_the_weights_of_the_root(toy, shared_tmp_path):
    folder = shared_tmp_path / "run"
    toy.fit(
        [{"x": np.zeros(3)}] * 2,
        model=lambda: toy.toy.random_model(toy.rank),
        global_batch_size=2,
        max_steps=0,
        run_dir=folder,
    )
    saved = load(folder / "checkpoints" / "step-00000000").state.weights
    born = toy.trainer(lambda: toy.toy.random_model(0), global_batch_size=2, max_steps=0)
    born.fit([{"x": np.zeros(3)}] * 2)
    expected, _ = snapshot(born)
    assert saved.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(saved[name], array, err_msg=name)


def test_case_13_model_built_at_the_first_batch_starts_from_the_root(toy):
    # An all-zero gradient keeps the weights; one of x = 2 then moves each weight by -0.1 * 2.
    arguments = {"global_batch_size": 2, "learning_rate": 0.1}
    born = toy.fit([{"x": np.full(3, 2.0)}] * 2, model=lambda: toy.toy.lazy_model(toy.rank), max_steps=0, **arguments)
    moved = toy.fit([{"x": np.full(3, 2.0)}] * 2, model=lambda: toy.toy.lazy_model(toy.rank), max_steps=1, **arguments)
    (before,), (after,) = born.weights.values(), moved.weights.values()
    np.testing.assert_allclose(after, before - 0.2, atol=TOLERANCE)
    assert np.abs(before).max() > 0


def test_case_13_ranks_born_alike_would_prove_nothing(toy):
    trainer = toy.trainer(lambda: toy.toy.random_model(toy.rank), kind="SilentTrainer", global_batch_size=2)
    if toy.size == 1:
        trainer.fit([{"x": np.zeros(3)}])
        return
    with pytest.raises(ReplicaError, match=r"^start: all ranks must hold the same state"):
        trainer.fit([{"x": np.zeros(3)}])


def test_case_16_frozen_and_integer_parameters_keep_the_values_of_the_root(toy):
    fixed = {
        "frozen": np.array([1.5, -2.5], np.float32) + toy.rank,
        "count": np.array([2**53 + 1, -3]) + toy.rank,
    }
    run = toy.fit(
        [1.0, 2.0, 3.0],
        model=lambda: toy.toy.Toy(fixed=fixed),
        global_batch_size=3,
        epochs=2,
        weight_decay=0.5,
    )
    np.testing.assert_array_equal(run.weights["frozen"], np.array([1.5, -2.5], np.float32))
    np.testing.assert_array_equal(run.weights["count"], np.array([2**53 + 1, -3]))
    assert run.weights["count"].dtype == np.int64
    # w = -0.2, then -0.2 - 0.1 (2 - 0.5 * 0.2).
    assert run.w == close(-0.39)


# ---------------------------------------------------------------- 23, 24: metrics and data


def _hits(model, batch):
    return {"accuracy": batch["x"]}


def test_case_23_accuracy_counts_every_sample_once(toy):
    held_out = Recorded([1.0, 1.0, 1.0, 1.0, 0.0])
    run = toy.fit([1.0], eval_samples=held_out, global_batch_size=1, metrics=_hits, batch_size=1)
    assert run.summary["eval"]["accuracy"] == close(0.8)
    assert run.summary["ledger"]["eval"] == {"once": 5, "more": 0, "never": 0}
    assert sum(toy.communicator.all_gather(len(held_out.accessed))) == 5


def test_case_23_one_sample_gives_its_value(toy):
    run = toy.fit([1.0], eval_samples=[0.25], global_batch_size=1, metrics=_hits)
    assert run.summary["eval"] == {"loss": close(-0.1 * 0.25), "accuracy": close(0.25)}


def test_weighted_metric_divides_by_the_weights_of_all_ranks(toy):
    def weighted(model, batch):
        return {"mean": (batch["x"], batch["x"])}

    run = toy.fit([1.0], eval_samples=[1.0, 2.0, 3.0], global_batch_size=1, metrics=weighted)
    assert run.summary["eval"]["mean"] == close(14 / 6)


def test_weighted_loss_divides_by_the_weights_of_all_ranks(toy):
    def weighted(model, batch):
        return model(batch["x"]), batch["x"]

    run = toy.fit([1.0, 2.0, 3.0], loss=weighted, global_batch_size=3)
    assert run.w == close(-0.1 * 14 / 6)
    assert run.summary["train"] == {"loss": close(0.0)}


def _visited(toy, *, seed):
    """Return the ids that all ranks trained on, per epoch and in the order of ranks."""
    seen, epochs = [], []

    def note(sample, rng):
        seen.append(int(sample["x"]))
        return sample

    def cut(epoch):
        epochs.append(list(seen))
        seen.clear()

    toy.fit(range(10), global_batch_size=4, epochs=2, shuffle=True, seed=seed, augment=note, callbacks=[AtEnd(cut)])
    by_epoch = zip(*toy.communicator.all_gather(epochs), strict=True)
    return [[row for part in parts for row in part] for parts in by_epoch]


def test_case_24_each_id_once_per_epoch_in_an_order_of_the_seed(toy):
    first, again, other = _visited(toy, seed=1), _visited(toy, seed=1), _visited(toy, seed=2)
    assert [sorted(epoch) for epoch in first] == [list(range(10))] * 2
    assert first[0] != first[1]
    assert first == again
    assert first != other


# ---------------------------------------------------------------- 28, 29, 30: accumulation


def test_case_28_short_window_is_an_update_of_its_own(toy):
    watch = Steps()
    run = toy.fit([1.0] * (6 * toy.size), batch_size=1, backward_passes_per_step=4, epochs=2, callbacks=[watch])
    assert watch.ws == [close(-0.1), close(-0.2), close(-0.3), close(-0.4)]
    assert run.summary["global_step"] == 4


def test_case_29_accumulated_gradient_is_the_mean_over_passes_and_ranks(toy):
    arguments = {"global_batch_size": 4, "backward_passes_per_step": 4 // min(toy.size, 2)}
    assert toy.fit([1.0, 2.0, 3.0, 4.0], **arguments).w == close(-0.25)


def test_accumulation_of_unequal_passes_equals_one_batch(toy):
    samples = [float(x) for x in range(1, 12)]
    run = toy.fit(samples, global_batch_size=11, batch_size=2, epochs=2, momentum=0.9)
    assert run.w == close(toy_weight(samples, 11, epochs=2, momentum=0.9))


def test_case_30_three_updates_are_counted_from_nine_passes(toy):
    run = toy.fit([1.0] * (9 * toy.size), batch_size=1, backward_passes_per_step=3, rule="adam")
    assert run.summary["global_step"] == 3
    assert float(run.slots["w/step"]) == 3.0
    # Adam with a constant gradient moves by the rate each time.
    assert run.w == close(-0.3)


def test_losses_are_exact_means_over_ranks(toy):
    watch = Steps()
    run = toy.fit([1.0, 2.0, 4.0, 8.0, 16.0], global_batch_size=2, log_every_steps=1, callbacks=[watch])
    # w before each step: 0, -0.15, -0.75; batch means 1.5, 6, 16.
    assert [row["loss"] for row in watch.rows] == [close(0.0), close(-0.9), close(-12.0)]
    assert [row["grad_norm"] for row in watch.rows] == [close(1.5), close(6.0), close(16.0)]
    assert [row["learning_rate"] for row in watch.rows] == [0.1] * 3
    assert run.summary["train"] == {"loss": close((0.0 - 2 * 0.9 - 12.0) / 5)}
    assert_on_all_ranks(toy.communicator, len(watch.rows) == 3, "missed a step")


def test_clipping_acts_on_the_mean_gradient_of_all_ranks(toy):
    run = toy.fit([3.0, 5.0], global_batch_size=2, clip_norm=2.0, loss=loss)
    assert run.w == close(-0.2)
