"""What each hook promises ("After this call ..."), at size 1, the same body for both frameworks."""

from __future__ import annotations

import numpy as np
import pytest

from hvdtrain.data import MicroBatch
from hvdtrain.errors import CheckpointError, DataError
from hvdtrain.portable import PortableState
from hvdtrain.step import StepVotes
from tests.parallel.fitting import loss, snapshot

ROWS = [{"x": np.array([0.5, -1.0, 2.0]) * (row + 1)} for row in range(4)]


def close(expected):
    return pytest.approx(expected, abs=1e-6, rel=1e-6)


@pytest.fixture
def prepared(toy):
    """A function that returns a trainer at step 0 of a network on ``ROWS``, not stopped before the test ends."""
    made = []

    def prepare(**arguments):
        settings = {"model": lambda: toy.toy.random_model(4), "global_batch_size": 4, "max_steps": 0, **arguments}
        rows = settings.pop("rows", ROWS)
        settings.setdefault("loss", _squares if rows is ROWS else loss)
        run = toy.fit(rows, kind="HeldTrainer", **settings)
        made.append(run.trainer)
        return run.trainer

    yield prepare
    for trainer in made:
        toy.toy.Trainer.stop(trainer)


@pytest.fixture
def prepared_toy(prepared, toy):
    """A function that returns a trainer of ``w x`` at step 0, with a global batch of 4."""
    return lambda **arguments: prepared(rows=[{"x": np.float32(1)}], model=toy.toy.Toy, **arguments)


def _squares(model, batch):
    return model(batch["x"])[:, 0] ** 2


def _batch(trainer, *xs):
    return trainer.make_batch(MicroBatch({"x": np.array(xs, np.float32)}, len(xs)))


def _step(trainer, *batches, lr=0.1):
    made = [_batch(trainer, *xs) for xs in batches]
    votes = StepVotes(num_samples=sum(len(xs) for xs in batches), num_passes=len(batches), stop=True)
    return trainer.train_step(made, lr=lr, votes=votes)


# ---------------------------------------------------------------- start, prepare


def test_start_leaves_the_place_of_the_only_rank(prepared_toy):
    topology = prepared_toy().topology
    assert (topology.rank, topology.size, topology.local_rank, topology.local_size) == (0, 1, 0, 1)


def test_prepare_restores_the_state_that_the_probe_moved(toy):
    """The probe runs the model; its weights, statistics and random numbers are as before."""
    once = toy.fit(
        [{"x": np.full(4, float(row))} for row in range(2)], model=toy.toy.Masking, global_batch_size=2, max_steps=0
    )
    assert {name: values.tolist() for name, values in once.weights.items() if "tracked" not in name} == {
        "w": 1.0,
        "inner.1.weight": [1.0] * 4,
        "inner.1.bias": [0.0] * 4,
        "inner.1.running_mean": [0.0] * 4,
        "inner.1.running_var": [1.0] * 4,
    }


def test_prepare_makes_the_slots_of_every_trained_parameter(prepared):
    trainer = prepared(rule="adam")
    weights, slots = snapshot(trainer)
    assert sorted(weights) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert sorted(slots) == sorted(f"{name}/{slot}" for name in weights for slot in ("exp_avg", "exp_avg_sq", "step"))
    assert all(not values.any() for values in slots.values())
    assert {name: slots[f"{name}/exp_avg"].shape for name in weights} == {n: v.shape for n, v in weights.items()}


def test_prepare_reports_the_metrics_with_the_loss_first(toy):
    def metrics(model, batch):
        return {"z": batch["x"], "a": batch["x"]}

    run = toy.fit([1.0], eval_samples=[1.0], metrics=metrics, global_batch_size=1)
    assert list(run.summary["eval"]) == ["loss", "z", "a"]


def test_prepare_with_a_scalar_loss_raises_and_leaves_the_model(toy):
    model = toy.toy.Toy(0.5)
    trainer = toy.trainer(model, loss=lambda m, b: toy.toy.mean(m(b["x"])), global_batch_size=2)
    with pytest.raises(DataError) as caught:
        trainer.fit([{"x": np.float32(x)} for x in (1, 2)])
    assert str(caught.value) == (
        "loss: must return one value per element, got shape [] for 2 samples. "
        'A mean hides how much each rank weighs: use reduction="none" and return what it gives.'
    )
    assert float(np.asarray(_value(model.w))) == 0.5


def _value(weight):
    return weight.detach() if hasattr(weight, "detach") else weight.numpy()


def test_prepare_with_a_loss_that_mixes_samples_raises(prepared):
    """A wrong broadcast trains without an error, and its value depends on how samples are shared out."""

    def mixed(model, batch):
        return (model(batch["x"])[:, :1] - batch["x"][:, 0]) ** 2  # (n, 1) minus (n,)

    with pytest.raises(
        DataError, match=r"loss: each value must belong to one sample, got shape \[2, 2\] for 2 samples"
    ):
        prepared(loss=mixed)


def test_prepare_with_a_scalar_metric_raises_and_names_it(toy):
    trainer = toy.trainer(metrics=lambda m, b: {"hits": toy.toy.mean(b["x"])}, global_batch_size=2)
    with pytest.raises(DataError) as caught:
        trainer.fit([{"x": np.float32(x)} for x in (1, 2)])
    assert str(caught.value) == (
        "metric 'hits': must return one value per element, got shape [] for 2 samples. "
        'A mean hides how much each rank weighs: use reduction="none" and return what it gives.'
    )


def test_prepare_with_weights_of_another_shape_raises(toy):
    trainer = toy.trainer(loss=lambda m, b: (m(b["x"]), b["x"][:1]), global_batch_size=2)
    with pytest.raises(DataError) as caught:
        trainer.fit([{"x": np.float32(x)} for x in (1, 2)])
    assert str(caught.value) == "loss: values and weights must have one shape, got [2] and [1]."


# ---------------------------------------------------------------- broadcast_state, make_batch


def test_broadcast_state_keeps_the_values_of_the_only_rank(prepared):
    trainer = prepared(rule="adamw")
    before = snapshot(trainer)
    trainer.broadcast_state()
    _require_same(before, snapshot(trainer))


@pytest.mark.parametrize(
    ("given", "kept"), [("float64", "float32"), ("float32", "float32"), ("int64", "int64"), ("int32", "int32")]
)
def test_make_batch_turns_float64_into_float32_and_keeps_other_dtypes(toy, given, kept):
    dtypes = []

    def noting(model, batch):
        dtypes.append(str(batch["x"].dtype).removeprefix("<dtype: '").removesuffix("'>").removeprefix("torch."))
        return model(batch["w"])

    sample = {"x": np.array([1, 2], given), "w": np.float32(1)}
    toy.fit([sample], loss=noting, global_batch_size=1)
    assert set(dtypes) == {kept}


@pytest.mark.parametrize("given", ["uint8", "bool", "float16", "int8"])
def test_make_batch_keeps_small_dtypes_values_and_structure(prepared_toy, given):
    trainer = prepared_toy()
    array = np.array([[1, 0], [1, 1]], given)
    made = trainer.make_batch(MicroBatch({"a": array, "b": (array, array[0])}, 2))
    assert list(made) == ["a", "b"]
    assert type(made["b"]) is tuple
    np.testing.assert_array_equal(np.asarray(made["b"][0]), array)
    assert np.asarray(made["a"]).dtype == array.dtype


# ---------------------------------------------------------------- train_step


def test_train_step_makes_one_update_from_all_passes(prepared_toy):
    trainer = prepared_toy()
    result = _step(trainer, [1.0, 2.0], [6.0])
    assert float(trainer.export_state().weights["w"]) == close(-0.3)
    assert (result.loss_sum, result.weight_sum, result.num_samples) == (0.0, 3.0, 3)
    assert result.grad_norm == close(3.0)
    assert (result.stop_votes, result.end_votes) == (1, 0)


def test_train_step_uses_the_rate_it_is_given(prepared_toy):
    trainer = prepared_toy()
    _step(trainer, [1.0], lr=0.5)
    _step(trainer, [1.0], lr=0.25)
    assert float(trainer.export_state().weights["w"]) == close(-0.75)


def test_train_step_without_batches_changes_nothing(prepared_toy):
    trainer = prepared_toy(momentum=0.9, weight_decay=0.5)
    _step(trainer, [1.0, 3.0])
    before = snapshot(trainer)
    result = _step(trainer)
    _require_same(before, snapshot(trainer))
    assert (result.loss_sum, result.weight_sum, result.num_samples, result.grad_norm) == (0.0, 0.0, 0, 0.0)


def test_train_step_forgets_the_gradients_of_the_last_one(prepared_toy):
    trainer = prepared_toy()
    _step(trainer, [4.0])
    _step(trainer, [1.0])
    assert float(trainer.export_state().weights["w"]) == close(-0.5)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_train_step_with_a_non_finite_pass_updates_nothing_and_the_next_is_clean(prepared_toy, bad):
    trainer = prepared_toy(momentum=0.9, on_nonfinite="skip")
    before = snapshot(trainer)
    assert not _step(trainer, [1.0], [bad]).is_finite
    _require_same(before, snapshot(trainer))
    assert _step(trainer, [1.0]).is_finite
    assert float(trainer.export_state().weights["w"]) == close(-0.1)


def test_train_step_clips_the_mean_gradient_and_reports_the_norm_before(prepared_toy):
    trainer = prepared_toy(clip_norm=2.0)
    assert _step(trainer, [6.0], [10.0]).grad_norm == close(8.0)
    assert float(trainer.export_state().weights["w"]) == close(-0.2)


# ---------------------------------------------------------------- average_statistics, eval_step


def test_average_statistics_keeps_those_of_the_only_rank(toy):
    run = toy.fit([{"x": np.arange(4.0) + row} for row in range(4)], model=toy.toy.Masking, global_batch_size=4)
    before = snapshot(run.trainer)
    run.trainer.average_statistics()
    _require_same(before, snapshot(run.trainer))


def test_eval_step_returns_sums_and_weights_of_loss_and_metrics(toy):
    def metrics(model, batch):
        return {"half": 0.5 * batch["x"], "weighted": (batch["x"], batch["x"])}

    run = toy.fit([1.0], model=lambda: toy.toy.Toy(2.0), metrics=metrics, global_batch_size=1, max_steps=0)
    before = snapshot(run.trainer)
    assert run.trainer.eval_step(_batch(run.trainer, 1.0, 2.0, 3.0)) == {
        "loss": (close(12.0), 3.0),
        "half": (close(3.0), 3.0),
        "weighted": (close(14.0), close(6.0)),
    }
    _require_same(before, snapshot(run.trainer))


# ---------------------------------------------------------------- export_state, import_state, stop


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"rule": "adam"}, {"rule": "adamw"}, {"rule": "lamb"}])
def test_import_state_after_export_state_restores_every_bit(prepared, settings):
    trained = prepared(max_steps=3, epochs=3, **settings)
    exported = PortableState(*snapshot(trained))
    other = prepared(**settings)
    other.import_state(exported)
    _require_same((exported.weights, exported.slots), snapshot(other))
    for trainer in (trained, other):
        trainer.train_step(
            [trainer.make_batch(MicroBatch({"x": np.stack([row["x"] for row in ROWS]).astype(np.float32)}, 4))],
            lr=0.1,
            votes=StepVotes(num_samples=4, num_passes=1),
        )
    _require_same(snapshot(trained), snapshot(other))


def test_import_state_without_a_partner_raises_and_lists_both_sides(prepared_toy):
    trainer = prepared_toy()
    with pytest.raises(CheckpointError) as caught:
        trainer.import_state(PortableState({"v": np.zeros((), np.float32)}))
    assert str(caught.value) == (
        "import_state: model and file must hold the same tensors, got only in the model: ['w']; only in the file: "
        "['v']; of different shape (model, file): none. Use the model that wrote the file, or give the job a names "
        "mapping."
    )


def test_import_state_of_another_shape_raises_and_names_both(prepared_toy):
    trainer = prepared_toy()
    with pytest.raises(CheckpointError) as caught:
        trainer.import_state(PortableState({"w": np.zeros(2, np.float32)}))
    assert str(caught.value) == (
        "import_state: model and file must hold the same tensors, got only in the model: none; only in the file: "
        "none; of different shape (model, file): ['w () and (2,)']. Use the model that wrote the file, or give the job "
        "a names mapping."
    )


def test_export_state_keeps_neutral_names_layouts_and_dtypes(prepared):
    weights, _ = snapshot(prepared())
    assert {name: (values.shape, str(values.dtype)) for name, values in weights.items()} == {
        "0.weight": ((4, 3), "float32"),
        "0.bias": ((4,), "float32"),
        "2.weight": ((1, 4), "float32"),
        "2.bias": ((1,), "float32"),
    }


def test_export_state_names_tied_weights_once(toy):
    run = toy.fit([1.0], model=toy.toy.Tied, global_batch_size=1)
    assert list(run.weights) == ["first.weight"]


def test_stop_may_run_before_start_and_twice(toy):
    trainer = toy.trainer(global_batch_size=1)
    trainer.stop()
    trainer.stop()


def test_fit_after_a_failed_fit_trains(toy):
    trainer = toy.trainer(loss=lambda m, b: toy.toy.mean(m(b["x"])), global_batch_size=2)
    with pytest.raises(DataError):
        trainer.fit([{"x": np.float32(1)}] * 2)
    assert toy.fit([1.0, 2.0], global_batch_size=2).w == close(-0.15)


def _require_same(before, after):
    for one, other in zip(before, after, strict=True):
        assert one.keys() == other.keys()
        for name, values in one.items():
            np.testing.assert_array_equal(values, other[name], err_msg=name)
