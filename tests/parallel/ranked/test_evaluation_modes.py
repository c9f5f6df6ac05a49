"""Evaluation drops no unit and moves no state, whatever the loss says; training does both."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from hvdtrain.callbacks import Callback
from tests.parallel.fitting import Fitter, snapshot

# A sample's row sum after an untouched normalisation (mean 0, variance 1, epsilon 0.001).
SCALE = 1 / np.sqrt(1.001)
SAMPLES = [{"x": np.arange(4, dtype=np.float32) + row} for row in range(8)]
EVALUATED = np.mean([sample["x"].sum() for sample in SAMPLES]) * SCALE


@pytest.fixture
def toy(adapter, communicator):
    return Fitter(importlib.import_module(f"tests.parallel.toy_{adapter}"), communicator)


def forgets(model, batch):
    return model(batch["x"])


def asks_to_train(model, batch):
    return model(batch["x"], training=True)


def asks_not_to_train(model, batch):
    return model(batch["x"], training=False)


def through_sub_layer(model, batch):
    return _row_sums(model.inner(batch["x"]))


def through_sub_layer_asking_to_train(model, batch):
    return _row_sums(model.inner(batch["x"], training=True))


def through_looked_up_layer(model, batch):
    look_up = model.get_submodule if hasattr(model, "get_submodule") else model.get_layer
    return _row_sums(look_up("inner")(batch["x"]))


def through_own_method(model, batch):
    return _row_sums(model.encode(batch["x"]))


def through_layers_of_sub_layer(model, batch):
    """Walk the parts of the sub-layer one by one."""
    x = batch["x"]
    for layer in _parts(model.inner):
        x = layer(x)
    return _row_sums(x)


def _parts(inner):
    return getattr(inner, "layers", None) or list(inner)


def _row_sums(values):
    if hasattr(values, "data_ptr"):
        return values.sum(1)
    import tensorflow as tf

    return tf.reduce_sum(values, axis=1)


def _losses(adapter):
    common = [forgets, through_sub_layer, through_layers_of_sub_layer, through_looked_up_layer, through_own_method]
    keras_only = [asks_to_train, asks_not_to_train, through_sub_layer_asking_to_train]
    return common if adapter == "torch" else [*common, *keras_only]


def test_evaluation_drops_nothing_and_moves_no_statistics(toy, adapter):
    for loss in _losses(adapter):
        run = toy.fit(
            SAMPLES,
            eval_samples=SAMPLES,
            model=toy.toy.Masking,
            loss=loss,
            metrics=lambda model, batch, loss=loss: {"again": loss(model, batch)},
            global_batch_size=8,
            max_steps=0,
        )
        assert run.summary["eval"]["loss"] == pytest.approx(EVALUATED, rel=1e-6), loss.__name__
        assert run.summary["eval"]["again"] == pytest.approx(EVALUATED, rel=1e-6), loss.__name__
        np.testing.assert_array_equal(run.weights["inner.1.running_mean"], np.zeros(4), err_msg=loss.__name__)
        np.testing.assert_array_equal(run.weights["inner.1.running_var"], np.ones(4), err_msg=loss.__name__)


def test_training_without_dropout_averages_batch_means_over_ranks(toy):
    # Each rank's share has a mean of its own; those are weighed equally, and a tenth of them is taken.
    run = toy.fit(SAMPLES, model=toy.toy.Masking, loss=_only_norm, global_batch_size=8)
    rows = np.array_split(np.arange(8), toy.size)
    means = [np.mean([SAMPLES[row]["x"] for row in part], axis=0) for part in rows]
    np.testing.assert_allclose(run.weights["inner.1.running_mean"], 0.1 * np.mean(means, axis=0), rtol=1e-6)


def _only_norm(model, batch):
    norm = _parts(model.inner)[1]
    return _row_sums(norm(batch["x"]))


class _Evaluations(Callback):
    """Keeps the loss of each evaluation and the statistics before and after."""

    def __init__(self):
        self.losses = []
        self.before = self.after = None

    def on_epoch_end(self, trainer, epoch):
        trainer.average_statistics()
        self.before = snapshot(trainer)[0]

    def on_evaluate(self, trainer, row):
        self.losses.append(row["loss"])
        self.after = snapshot(trainer)[0]


def test_training_moves_the_statistics_and_evaluation_leaves_them(toy, adapter):
    for loss in _losses(adapter):
        watch = _Evaluations()
        arguments = {"model": toy.toy.Masking, "loss": loss, "callbacks": [watch], "global_batch_size": 8}
        toy.fit(SAMPLES, eval_samples=SAMPLES, epochs=2, **arguments)
        assert len(watch.losses) == 2
        assert (watch.before["inner.1.running_mean"] != 0).any(), loss.__name__
        assert watch.before.keys() == watch.after.keys()
        for name, values in watch.before.items():
            np.testing.assert_array_equal(values, watch.after[name], err_msg=f"{loss.__name__}: {name}")


def test_dropout_acts_in_training(toy):
    # Without dropout the batch normalisation of the whole batch gives a loss of exactly 0.
    first = toy.fit(SAMPLES, model=toy.toy.Masking, loss=forgets, global_batch_size=8, seed=1)
    again = toy.fit(SAMPLES, model=toy.toy.Masking, loss=forgets, global_batch_size=8, seed=1)
    other = toy.fit(SAMPLES, model=toy.toy.Masking, loss=forgets, global_batch_size=8, seed=2)

    def moved(run):
        return run.weights["inner.1.running_mean"].tolist()

    assert moved(first) == moved(again)
    assert moved(first) != moved(other)


def test_case_55_omp_num_threads_decides(toy):
    # The driver sets it to 2 for this file.
    toy.fit(SAMPLES, model=toy.toy.Masking, loss=forgets, global_batch_size=8, max_steps=0)
    assert toy.toy.threads() == 2
