"""What only TensorFlow has: layers with tables, pipelines without end, and traces: cases 25, 43 and 58."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hvdtrain import Callback, Stream
from hvdtrain.errors import DataError, RankError
from tests.parallel import toy_tensorflow
from tests.parallel.fitting import Fitter
from tests.parallel.ranked.test_exactness import close, fit_stream

import keras  # isort: skip
import tensorflow as tf  # isort: skip


@pytest.fixture
def toy(adapter, communicator):
    return Fitter(toy_tensorflow, communicator)


# ---------------------------------------------------------------- 58: traces


class Traces(Callback):
    """Keeps how often the functions of each name have been traced, after each step."""

    def __init__(self):
        self.counts = []

    def on_step_end(self, trainer, report):
        counts = Counter(apply=trainer._apply.experimental_get_tracing_count())
        for (name, _), function in trainer._functions.items():  # by name and form of the batch
            counts[name] += function.experimental_get_tracing_count()
        self.counts.append(counts)


@pytest.mark.parametrize("evaluated", [None, [1.0, 2.0, 3.0]])
def test_case_58_each_function_is_traced_once_ragged_last_batch_included(toy, evaluated):
    # Steps of 8 samples and of 3, in passes of 2 and of 1.
    traces = Traces()
    settings = {"global_batch_size": 8, "batch_size": 2, "epochs": 3, "callbacks": [traces]}
    toy.fit([1.0] * 11, eval_samples=evaluated, **settings)
    made = {"gradients": 1, "apply": 1, "add": 1}
    assert traces.counts[:2] == [made, made]
    assert traces.counts[-1] == (made if evaluated is None else made | {"evaluate": 1})


def test_case_58_batches_of_two_sizes_would_be_traced_twice():
    traced = tf.function(lambda x: 2 * x)
    for size in (2, 1):
        traced(tf.ones(size))
    assert traced.experimental_get_tracing_count() == 2


# ---------------------------------------------------------------- 43: layers with tables


class Words(keras.Model):
    """A row of width one, from zero, for each word of a table; words that it lacks share row 0."""

    def __init__(self, lookup):
        super().__init__()
        self.lookup = lookup
        self.table = keras.layers.Embedding(4, 1, embeddings_initializer="zeros")

    def call(self, words):
        return self.table(self.lookup(words))


def string_lookup(words):
    return keras.layers.StringLookup(vocabulary=words, name="words")


def text_vectorization(words):
    return keras.layers.TextVectorization(vocabulary=words, output_sequence_length=1, name="words")


def of_word(model, batch):
    """Return one number per sample, whether a word is a number or a sequence of one."""
    return tf.reshape(model(batch["word"]), [-1])


def word_samples(*words):
    return [{"word": np.array(word)} for word in words]


@pytest.mark.parametrize(("make", "first"), [(string_lookup, 1), (text_vectorization, 2)])
def test_case_43_equal_tables_look_up_on_all_ranks(toy, make, first):
    # Updates: short and longer, then the longer one alone; a word that is missing has row ``first - 1``.
    run = toy.fit(
        word_samples("ape", "zebra", "zebra"),
        model=lambda: Words(make(["ape", "zebra"])),
        loss=of_word,
        global_batch_size=2,
    )
    rows = run.weights["table.weight"][:, 0].tolist()
    assert rows[first : first + 2] == [close(-0.05), close(-0.15)]
    assert [row for index, row in enumerate(rows) if index not in (first, first + 1)] == [0.0, 0.0]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("make", [string_lookup, text_vectorization])
def test_case_43_tables_that_differ_between_ranks_are_refused_by_layer(toy, make):
    words = ["ape", "zebra"] if toy.rank == 0 else ["zebra", "ape"]
    trainer = toy.trainer(lambda: Words(make(words)), loss=of_word, global_batch_size=2)
    with pytest.raises(RankError, match=r"^probe: ranks must agree on .*table of layer words \(rank 0 has '"):
        trainer.fit(word_samples("ape", "zebra"))


class Scaled(keras.Model):
    """``w`` times a normalised x."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(), initializer="zeros")

    def call(self, x):
        return self.w * tf.reshape(self.norm(tf.reshape(x, [-1, 1])), [-1])


def adapted(offset):
    """Return a layer adapted to 1 and 3, so that it takes 2 away, or to both moved by ``offset``."""
    layer = keras.layers.Normalization(axis=-1, name="norm")
    layer.adapt(np.array([[1.0], [3.0]], np.float32) + offset)
    return layer


def given(offset):
    """Return a layer of the same numbers, given to its constructor."""
    return keras.layers.Normalization(axis=-1, mean=[2.0 + offset], variance=[1.0], name="norm")


@pytest.mark.parametrize("make", [adapted, given])
def test_case_43_equal_normalisation_trains_on_all_ranks(toy, make):
    # 3 and 4 become 1 and 2.
    assert toy.fit([3.0, 4.0], model=lambda: Scaled(make(0)), global_batch_size=2).w == close(-0.15)


# ---------------------------------------------------------------- 25: pipelines


def endless(shard, num_shards):
    return tf.data.Dataset.from_tensor_slices({"x": [1.0, 1.0]}).shuffle(2).repeat()


def test_case_25_pipeline_without_end_is_refused(toy):
    with pytest.raises(DataError) as caught:
        toy.trainer(global_batch_size=2).fit(Stream(endless))
    assert str(caught.value) == (
        "stream: a pipeline that repeats without end needs the length of an epoch, got neither steps_per_epoch nor "
        "max_steps. Set one, or take repeat() out of the pipeline."
    )
    assert (caught.value.exit_code, caught.value.is_agreed) == (2, True)


def test_case_25_pipeline_without_end_trains_the_steps_of_an_epoch(toy):
    run = fit_stream(toy, Stream(endless), global_batch_size=2, steps_per_epoch=3, epochs=2)
    assert (run.summary["global_step"], run.summary["samples_seen"], run.w) == (6, 12, close(-0.6))


def test_case_25_sharded_pipeline_gives_each_id_once(toy):
    def make(shard, num_shards):
        return tf.data.Dataset.range(7).shard(num_shards, shard).map(lambda i: {"x": tf.cast(i, tf.float32)})

    run = fit_stream(toy, Stream(make), global_batch_size=7, data_workers=2)
    assert (run.summary["samples_seen"], run.w) == (7, close(-0.3))


@pytest.mark.parametrize("is_endless", [False, True])
def test_case_25_bare_pipeline_is_refused_with_the_cure(toy, is_endless):
    pipeline = tf.data.Dataset.from_tensor_slices({"x": [1.0, 2.0]})
    pipeline = pipeline.repeat() if is_endless else pipeline
    with pytest.raises(DataError) as caught:
        toy.trainer(global_batch_size=2).fit(pipeline)
    assert str(caught.value) == (
        f"plan: train_data must have len() and [i], got {type(pipeline).__name__}. Wrap what can only be iterated in "
        "hvdtrain.Stream(make), where make(shard, num_shards) returns the samples of one shard."
    )


# ---------------------------------------------------------------- last: what is not right yet ends the launch


def fitted_or_refused(toy, make):
    """Return the weight of two ranks whose layers differ, or what refuses them."""
    try:
        return toy.fit([3.0, 4.0], model=lambda: Scaled(make(10 * toy.rank)), global_batch_size=2).w
    except RankError as error:
        return str(error)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("make", [adapted, given])
def test_case_43_normalisation_that_differs_between_ranks_is_that_of_the_root_or_refused_by_layer(toy, make):
    found = fitted_or_refused(toy, make)
    assert found == close(-0.15) if isinstance(found, float) else "layer norm" in found
