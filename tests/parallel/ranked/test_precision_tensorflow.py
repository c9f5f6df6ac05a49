"""What only Keras has: layers that take their precision when they are made."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from hvdtrain.errors import AdapterError, ConfigError
from tests.parallel import toy_tensorflow
from tests.parallel.fitting import Fitter
from tests.parallel.ranked.test_precision import ROWS, squares


@pytest.fixture
def toy(adapter, communicator):
    fitter = Fitter(toy_tensorflow, communicator)
    fitter.fit([1.0], global_batch_size=1)  # sets the threads, which TensorFlow takes before its first operation
    return fitter


def dense(dtype=None):
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="0", dtype=dtype)])


def test_model_that_is_built_already_is_refused_with_the_cure(toy):
    model = dense()
    with pytest.raises(ConfigError) as caught:
        toy.trainer(model, loss=squares, global_batch_size=2, precision="bf16").fit(ROWS)
    assert str(caught.value) == (
        "prepare: precision='bf16' must be known where layers are made, got a model whose layers all compute in "
        "float32. Pass the function that makes the model, model=build_model, or make its layers with "
        "dtype='mixed_bfloat16'."
    )


def test_model_built_already_in_mixed_bfloat16_is_taken(toy):
    run = toy.fit(ROWS, model=dense("mixed_bfloat16"), loss=squares, global_batch_size=10, precision="bf16")
    assert run.trainer.built_model.layers[0].compute_dtype == "bfloat16"


def test_layer_with_a_dtype_of_its_own_keeps_it(toy):
    def model():
        layers = [keras.layers.Dense(2, name="0"), keras.layers.Dense(1, name="1", dtype="float32")]
        return keras.Sequential([keras.Input((3,)), *layers])

    run = toy.fit(ROWS, model=model, loss=squares, global_batch_size=10, precision="bf16")
    assert [layer.compute_dtype for layer in run.trainer.built_model.layers] == ["bfloat16", "float32"]


def test_policy_of_the_process_is_as_before(toy):
    toy.fit(ROWS, model=dense, loss=squares, global_batch_size=10, precision="bf16")
    assert keras.config.dtype_policy().name == "float32"


def test_trained_bfloat16_parameter_is_refused_by_name(toy):
    with pytest.raises(AdapterError) as caught:
        toy.trainer(lambda: dense("bfloat16"), loss=squares, global_batch_size=2).fit(ROWS)
    assert str(caught.value) == (
        "prepare: Horovod reduces no bfloat16 gradients, got that of '0.weight'. Keep parameters in float32; "
        "precision='bf16' computes in bfloat16 on top of them."
    )


def test_loss_gets_float32_of_a_model_that_computes_in_bfloat16(toy):
    seen = []

    def loss(model, batch):
        output = model(batch["x"])
        seen.append(output.dtype)
        return (output - tf.ones_like(batch["x"][:, :1]))[:, 0] ** 2

    toy.fit(ROWS, model=dense, loss=loss, global_batch_size=10, precision="bf16")
    assert set(seen) == {tf.float32}


def test_compile_is_refused_with_the_reason(toy):
    with pytest.raises(AdapterError) as caught:
        toy.trainer(compile=True, global_batch_size=2).fit(ROWS)
    assert str(caught.value) == (
        "prepare: compile must be False in TensorFlow, got True. Its functions are graphs already; XLA makes them no "
        "faster and compiles anew for each number of samples. Leave it out, or give --no-compile."
    )
