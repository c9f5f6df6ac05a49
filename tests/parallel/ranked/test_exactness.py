"""Streams, schedules, sparse, unused and frozen parameters on real ranks: cases 3, 4, 5, 25, 26, 27 and 44."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from hvdtrain import Stream
from hvdtrain.callbacks import Callback
from hvdtrain.errors import AdapterError, ConfigError, DataError, RankError
from tests.parallel.fitting import AtEnd, Fitter, Run, Steps, snapshot

TOLERANCE = 1e-6


@pytest.fixture
def toy(adapter, communicator):
    return Fitter(importlib.import_module(f"tests.parallel.toy_{adapter}"), communicator)


@pytest.fixture
def models(adapter):
    return importlib.import_module(f"tests.parallel.exact_{adapter}")


def close(expected):
    return pytest.approx(expected, abs=TOLERANCE, rel=TOLERANCE)


def numbers(values):
    return [{"x": np.float32(value)} for value in values]


def of_shards(*shards):
    """Return a stream of these shards."""
    return Stream(lambda shard, num_shards: numbers(shards[shard]), num_shards=len(shards))


def fit_stream(toy, stream, eval_data=None, **arguments):
    trainer = toy.trainer(**arguments)
    run = Run(trainer, trainer.fit(stream, eval_data), *snapshot(trainer))
    toy.require_equal(run)
    return run


# ---------------------------------------------------------------- 3, 5: streams of uneven length


def test_case_3_last_sample_of_one_rank_counts_in_full(toy):
    watch = Steps()
    run = fit_stream(toy, of_shards([4.0, 4.0], [4.0]), global_batch_size=2, callbacks=[watch])
    assert watch.ws == [close(-0.4), close(-0.8)]
    assert (run.summary["global_step"], run.summary["samples_seen"]) == (2, 3)


def test_case_5_stream_that_ends_earlier_on_one_rank_ends_its_epochs_together(toy):
    sums, watch = [], Steps()
    at_end = AtEnd(lambda epoch: sums.append(toy.communicator.allreduce_sum(np.array([epoch])).tolist()))
    stream = of_shards([1.0, 2.0, 3.0, 4.0, 5.0], [10.0, 20.0])
    run = fit_stream(
        toy, stream, numbers([1.0, 3.0]), global_batch_size=2, epochs=2, callbacks=[at_end, watch], log_every_steps=1
    )
    # One rank reads on in the longer shard: 1 10, 2 20, 3 4, 5; two take a sample each: 1 10, 2 20, 3, 4, 5.
    steps, w = {1: (4, -2.5), 2: (5, -2.85)}[toy.size]
    assert (run.summary["global_step"], run.summary["samples_seen"], run.summary["epoch"]) == (2 * steps, 14, 2)
    assert run.w == close(2 * w)
    assert [row["loss"] for row in watch.eval_rows] == [close(2 * w), close(4 * w)]
    assert sums == [[toy.size], [2 * toy.size]]


def test_stream_with_fewer_shards_than_ranks_is_refused(toy):
    if toy.size == 1:
        assert fit_stream(toy, of_shards([1.0]), global_batch_size=2).w == close(-0.1)
        return
    with pytest.raises(ConfigError) as caught:
        toy.trainer(global_batch_size=2).fit(of_shards([1.0]))
    assert str(caught.value) == (
        "stream: num_shards must be at least the number of ranks, got 1 for 2 ranks. "
        "Give the stream more shards, or start fewer ranks."
    )


def test_empty_shard_trains_on_the_others(toy):
    run = fit_stream(toy, of_shards([], [2.0, 4.0]), global_batch_size=2)
    steps, w = {1: (1, -0.3), 2: (2, -0.6)}[toy.size]
    assert (run.summary["global_step"], run.w) == (steps, close(w))


# ---------------------------------------------------------------- 25: each id once


def read_ids(toy, **arguments):
    """Return the ids that all ranks trained on, in order of size, and the numbers of shards that were asked for."""
    seen, asked = [], set()

    def make(shard, num_shards):
        asked.add(num_shards)
        return numbers(range(shard, 11, num_shards))

    def note(sample, rng):
        seen.append(int(sample["x"]))
        return sample

    run = fit_stream(toy, Stream(make), global_batch_size=4, augment=note, **arguments)
    ids = [number for part in toy.communicator.all_gather(seen) for number in part]
    assert run.summary["samples_seen"] == len(ids)
    return sorted(ids), asked


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_case_25_stream_gives_each_id_once_for_any_number_of_workers(toy, workers):
    ids, asked = read_ids(toy, data_workers=workers)
    assert ids == list(range(11))
    assert asked == {toy.size * max(workers, 1)}


def test_case_25_each_epoch_reads_the_whole_stream(toy):
    ids, _ = read_ids(toy, epochs=3, data_workers=2)
    assert ids == sorted([*range(11)] * 3)


def test_case_25_steps_per_epoch_cut_a_stream_without_losing_a_sample(toy):
    # Two epochs of one step each take 8 of the 11.
    ids, _ = read_ids(toy, steps_per_epoch=1, epochs=2)
    assert len(ids) == len(set(ids)) == 8


def test_stream_without_samples_is_refused(toy):
    with pytest.raises(DataError) as caught:
        toy.trainer(global_batch_size=2).fit(Stream(lambda shard, num_shards: []))
    assert str(caught.value) == (
        "plan: train_data must hold at least 1 sample, got an empty stream. Check the path or the filter."
    )


# ---------------------------------------------------------------- 26, 27: schedules


@pytest.mark.parametrize("passes", [1, 2])
def test_case_26_linear_decay_is_half_after_five_updates_and_zero_after_ten(toy, passes):
    watch = Steps()
    run = toy.fit(
        [1.0] * 40,
        global_batch_size=4,
        backward_passes_per_step=passes,
        epochs=2,
        decay="linear",
        decay_epochs=1,
        log_every_steps=1,
        callbacks=[watch],
    )
    rates = [row["learning_rate"] for row in watch.rows]
    assert rates[:11] == [close(0.1 * (10 - update) / 10) for update in range(11)]
    assert (rates[5], rates[10:]) == (close(0.05), [0.0] * 10)
    assert run.w == close(-0.55)


def plateau(toy, held_out, **more):
    """Train three updates of x = -10, so that w is 1, 2, 3 at full rate; evaluate ``a + w x`` after each."""
    watch = Steps()
    run = toy.fit(
        [{"x": np.float32(-10), "a": np.float32(0)}],
        eval_samples=[{"x": np.float32(x), "a": np.float32(a)} for x, a in held_out],
        loss=lambda model, batch: batch["a"] + model(batch["x"]),
        global_batch_size=1,
        epochs=3,
        callbacks=[watch],
        **more,
    )
    return run.w, [row["loss"] for row in watch.eval_rows]


def test_case_27_plateau_keeps_the_rate_while_the_global_value_improves(toy):
    # Rank 0 holds w: 1, 2; rank 1 holds 3.5 - 1.5 w: 2, 0.5.
    w, losses = plateau(toy, [(1, 0), (-1.5, 3.5)], decay="plateau", plateau_patience=0, decay_factor=0.1)
    assert losses[:2] == [close(1.5), close(1.25)]
    assert w == close(3.0)


def test_case_27_plateau_lowers_the_rate_when_the_global_value_gets_worse(toy):
    # Rank 0 holds w: 1, 2; rank 1 holds 1.5 - 0.5 w: 1, 0.5.
    w, losses = plateau(toy, [(1, 0), (-0.5, 1.5)], decay="plateau", plateau_patience=0, decay_factor=0.1)
    assert losses[:2] == [close(1.0), close(1.25)]
    assert w == close(2.1)


def test_case_27_early_stopping_follows_the_global_value(toy):
    assert plateau(toy, [(1, 0), (-1.5, 3.5)], early_stop_patience=1)[0] == close(3.0)
    assert plateau(toy, [(1, 0), (-0.5, 1.5)], early_stop_patience=1)[0] == close(2.0)


# ---------------------------------------------------------------- 4, 44: sparse gradients


def look_up(toy, models, ids, **arguments):
    samples = [{"id": np.int64(number)} for number in ids]
    run = toy.fit(samples, model=models.Lookup, loss=lambda model, batch: model(batch["id"]), **arguments)
    return run.weights["table.weight"].tolist()


def test_case_44_rows_that_single_ranks_touched_move_on_all(toy, models):
    assert look_up(toy, models, [0, 1], global_batch_size=2) == [[close(-0.05)] * 2] * 2


def test_case_4_sparse_gradients_with_an_empty_share_equal_one_process(toy, models):
    # Updates 0 1, 1 0, 1: the gradients of the rows are 0.5 0.5, 0.5 0.5, 0 1.
    assert look_up(toy, models, [0, 1, 1, 0, 1], global_batch_size=2) == [[close(-0.1)] * 2, [close(-0.2)] * 2]


def test_case_4_sparse_gradients_have_the_momentum_of_dense_ones(toy, models):
    # Buffers of the rows: 0.5 0.5, 0.75 0.75, 0.375 1.375.
    found = look_up(toy, models, [0, 1, 1, 0, 1], global_batch_size=2, momentum=0.5)
    assert found == [[close(-0.1625)] * 2, [close(-0.2625)] * 2]


def test_case_4_sparse_gradients_add_over_passes(toy, models):
    found = look_up(toy, models, [0, 0, 1, 0], global_batch_size=4, batch_size=1)
    assert found == [[close(-0.075)] * 2, [close(-0.025)] * 2]


# ---------------------------------------------------------------- the noise scale


class Noise(Callback):
    """Keeps what updates tell of the noise."""

    def __init__(self):
        self.told = []

    def on_step_end(self, trainer, report):
        self.told.append((report.result.num_shares, report.result.share_norms, report.result.grad_norm))


#: The gradient of a sample is its x. Rank 0 holds 1 2, rank 1 holds 4; then the last sample is rank 0's alone.
NOISY = [1.0, 2.0, 4.0, 5.0]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("batch_size", [None, 1])
def test_noise_scale_compares_the_gradients_of_ranks_before_they_are_reduced(toy, batch_size):
    noise = Noise()
    run = toy.fit(NOISY, global_batch_size=3, batch_size=batch_size, noise_scale=True, clip_norm=0.1, callbacks=[noise])
    # Sums 3 of two samples and 4 of one: 9 / 2 + 16. tr(Sigma) = 20.5 - 3 * (7/3)^2, |G|^2 = (7/3)^2 - tr(Sigma) / 3.
    assert noise.told == [(2, close(20.5), close(7 / 3)), (1, close(25.0), close(5.0))]
    assert run.summary["noise_scale"] == pytest.approx((25 / 6) / (73 / 18), rel=1e-5)  # differences of float32
    assert run.summary["largest_useful_batch"] == 1


@pytest.mark.ranks(2)
def test_norm_taken_after_the_reduction_is_told_apart(toy):
    noise = Noise()
    toy.trainer(kind="LateNormTrainer", global_batch_size=3, noise_scale=True, callbacks=[noise]).fit(numbers(NOISY))
    # 7^2 / 2 + 7^2 in the place of 3^2 / 2 + 4^2.
    assert noise.told[0][:2] == (2, close(73.5))


@pytest.mark.ranks(2)
def test_noise_scale_that_nobody_asked_for_costs_nothing(toy):
    noise = Noise()
    run = toy.fit(NOISY, global_batch_size=3, callbacks=[noise])
    assert [norms for _, norms, _ in noise.told] == [0.0, 0.0]
    assert "noise_scale" not in run.summary


@pytest.mark.ranks(2)
def test_noise_scale_of_a_sparse_gradient_and_a_spare_parameter(toy, models):
    noise = Noise()
    settings = {"global_batch_size": 3, "noise_scale": True, "callbacks": [noise]}
    look_up(toy, models, [0, 0, 1], **settings)
    # Rows of width two: 2 2 on rank 0, 1 1 on rank 1.
    assert noise.told[0][:2] == (2, close(8 / 2 + 2))
    toy.fit(NOISY[:3], model=models.Spare, **settings)
    assert noise.told[1][:2] == (2, close(20.5))


@pytest.mark.ranks(1)
def test_noise_scale_on_one_rank_is_refused(toy):
    with pytest.raises(ConfigError, match=r"^plan: noise_scale compares the gradients of at least 2 ranks, got 1 rank"):
        toy.fit(NOISY, global_batch_size=3, noise_scale=True)


# ---------------------------------------------------------------- unused, frozen, of another shape


@pytest.mark.parametrize("rule", ["sgd", "adamw", "lamb"])
def test_parameter_that_no_rank_used_is_left_alone(toy, models, rule):
    momentum = {"momentum": 0.9} if rule == "sgd" else {}
    run = toy.fit(
        [1.0, 2.0, 3.0],
        model=models.Spare,
        rule=rule,
        weight_decay=0.5,
        global_batch_size=2,
        epochs=2,
        **momentum,
    )
    assert run.weights["spare"].tolist() == [1.0, 1.0]
    slots = ["momentum_buffer"] if rule == "sgd" else ["exp_avg", "exp_avg_sq"]
    assert [run.slots[f"spare/{slot}"].tolist() for slot in slots] == [[0.0, 0.0]] * len(slots)
    assert run.w < -0.1


def test_parameters_that_one_rank_used_alone_get_their_mean_gradient(toy, models):
    # Gradients 3 / 2 for u and -5 / 2 for v, each with the decay 0.5 of a weight of 1.
    run = toy.fit([3.0, -5.0], model=models.Either, global_batch_size=2, batch_size=1, weight_decay=0.5)
    assert (float(run.weights["u"]), float(run.weights["v"])) == (close(0.8), close(1.2))


@pytest.mark.ranks(2)
def test_shapes_that_differ_between_ranks_are_refused_by_name_on_all(toy, models):
    trainer = toy.trainer(lambda: models.Spare(2 + toy.rank), global_batch_size=2)
    with pytest.raises(RankError) as caught:
        trainer.fit(numbers([1.0, 2.0]))
    assert str(caught.value) == (
        "probe: ranks must agree on tensor spare (rank 0 has ((2,), 'float32'), rank 1 has ((3,), 'float32')). "
        "Build the same model on every rank."
    )
    assert caught.value.is_agreed


def changed_in_training(toy, models, *, trains):
    """Train two epochs on one rank with a head that starts to train, or stops, after the first."""
    model = models.headed(trains=trains)
    callbacks = [AtEnd(lambda epoch: models.set_trains(model, not trains))]
    toy.trainer(model, global_batch_size=2, epochs=2, callbacks=callbacks).fit(numbers([1.0, 2.0]))


@pytest.mark.ranks(1)
@pytest.mark.parametrize(
    ("trains", "told"),
    [(False, "unfrozen: ['head.weight'], frozen: none"), (True, "unfrozen: none, frozen: ['head.weight']")],
)
def test_parameter_that_starts_or_stops_to_train_in_fit_is_refused(toy, models, trains, told):
    with pytest.raises(AdapterError) as caught:
        changed_in_training(toy, models, trains=trains)
    assert str(caught.value) == (
        f"train_step: the parameters that train must stay the same during fit, got {told}. "
        "Freeze before fit, and call fit again after a change."
    )


def test_frozen_head_may_train_in_the_next_fit(toy, models):
    model = models.headed(trains=False)
    first = toy.fit([1.0, 2.0], model=model, global_batch_size=2)
    models.set_trains(model, True)
    second = toy.fit([1.0, 2.0], model=model, global_batch_size=2)
    assert [run.weights["head.weight"].tolist() for run in (first, second)] == [[[1.0]], [[close(0.85)]]]
    assert (first.w, second.w) == (close(-0.15), close(-0.3))


def test_parameter_that_no_rank_used_has_made_no_step(toy, models):
    run = toy.fit([1.0, 2.0], model=models.Spare, rule="adam", global_batch_size=2, epochs=3)
    assert {name: float(run.slots[f"{name}/step"]) for name in ("w", "spare")} == {"w": 3.0, "spare": 0.0}
