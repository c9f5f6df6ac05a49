from __future__ import annotations

import numpy as np
import pytest

from hvdtrain.errors import AdapterError, CheckpointError, ConfigError
from hvdtrain.portable import (
    Layout,
    PortableState,
    apply_names,
    from_keras,
    require_same_tensors,
    require_same_trained,
)


def numbered(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_signature_holds_shape_and_dtype_of_weights_and_slots():
    state = PortableState(
        {"w": np.zeros((2, 3), np.float32), "mask": np.zeros(2, bool)}, {"w/exp_avg": np.zeros((2, 3))}
    )
    assert state.signature() == {
        "w": ((2, 3), "float32"),
        "mask": ((2,), "bool"),
        "w/exp_avg": ((2, 3), "float64"),
    }


# ---------------------------------------------------------------- layers
NAMES = [
    ("Dense", "kernel", "weight"),
    ("Dense", "bias", "bias"),
    ("Conv2D", "kernel", "weight"),
    ("DepthwiseConv2D", "kernel", "weight"),
    ("Embedding", "embeddings", "weight"),
    ("LayerNormalization", "gamma", "weight"),
    ("LayerNormalization", "beta", "bias"),
    ("BatchNormalization", "gamma", "weight"),
    ("BatchNormalization", "beta", "bias"),
    ("BatchNormalization", "moving_mean", "running_mean"),
    ("BatchNormalization", "moving_variance", "running_var"),
    ("MyLayer", "kernel", "kernel"),
]


@pytest.mark.parametrize(("layer", "variable", "suffix"), NAMES)
def test_from_keras_names_variables_as_torch_does(layer, variable, suffix):
    assert from_keras(layer, variable)[0] == suffix


def to_torch(layer, kernel):
    return from_keras(layer, "kernel")[1].to_portable(kernel)


def test_dense_kernel_has_the_output_first():
    assert to_torch("Dense", numbered(2, 3)).tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("window", [(5,), (5, 4), (5, 4, 2)])
def test_convolution_kernel_has_output_and_input_first(window):
    kernel = numbered(*window, 2, 3)
    found = to_torch(f"Conv{len(window)}D", kernel)
    assert found.shape == (3, 2, *window)
    for index in np.ndindex(*window, 2, 3):
        *place, channel, output = index
        assert found[(output, channel, *place)] == kernel[index]


@pytest.mark.parametrize("window", [(5,), (5, 4)])
def test_depthwise_kernel_has_one_output_per_channel_and_multiplier(window):
    kernel = numbered(*window, 3, 2)
    found = to_torch(f"DepthwiseConv{len(window)}D", kernel)
    assert found.shape == (6, 1, *window)
    for index in np.ndindex(*window, 3, 2):
        *place, channel, multiplier = index
        assert found[(channel * 2 + multiplier, 0, *place)] == kernel[index]


@pytest.mark.parametrize("layer", ["Dense", "MyLayer"])
def test_layout_that_permutes_axes_copies_nothing(layer):
    kernel = numbered(2, 3)
    assert np.shares_memory(from_keras(layer, "kernel")[1].to_portable(kernel), kernel)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        ("Dense", (2, 3)),
        ("Conv1D", (5, 2, 3)),
        ("Conv2D", (5, 4, 2, 3)),
        ("Conv3D", (5, 4, 2, 2, 3)),
        ("DepthwiseConv1D", (5, 3, 2)),
        ("DepthwiseConv2D", (5, 4, 3, 2)),
        ("MyLayer", (4, 3)),
    ],
)
def test_layout_there_and_back_is_the_same(layer, shape):
    layout, kernel = from_keras(layer, "kernel")[1], numbered(*shape)
    there = layout.to_portable(kernel)
    back = layout.from_portable(there, shape)
    assert back.flags.c_contiguous
    assert back.tolist() == kernel.tolist()


def test_layout_without_axes_leaves_the_array():
    array = numbered(2, 3)
    assert Layout().to_portable(array) is array
    assert Layout().from_portable(array, (2, 3)) is array


# ---------------------------------------------------------------- names
DERIVED = {"dense/kernel": "dense.weight", "dense/bias": "dense.bias"}


def test_apply_names_puts_the_jobs_own_above_the_derived():
    assert apply_names(DERIVED, {"fc.weight": "dense/kernel"}) == {
        "dense/kernel": "fc.weight",
        "dense/bias": "dense.bias",
    }


def test_apply_names_with_an_unknown_path_raises():
    with pytest.raises(ConfigError) as caught:
        apply_names(DERIVED, {"fc.weight": "dense_1/kernel"})
    assert str(caught.value) == (
        "names: every path must be a variable of the Keras model, got ['dense_1/kernel']. "
        "Its paths: ['dense/bias', 'dense/kernel']."
    )


def test_apply_names_with_one_name_for_two_raises():
    with pytest.raises(ConfigError) as caught:
        apply_names(DERIVED, {"dense.bias": "dense/kernel"})
    assert str(caught.value) == (
        "names: each weight needs a name of its own, got 'dense.bias' for 'dense/kernel' and 'dense/bias'. "
        "Give the layers different names, or the job a names mapping."
    )


# ---------------------------------------------------------------- partners
def test_same_tensors_in_any_order_pass():
    require_same_tensors("load", {"a": (1,), "b": (2,)}, {"b": (2,), "a": (1,)})


def test_optional_tensors_may_be_missing_on_either_side():
    require_same_tensors("load", {"a": (1,), "n": ()}, {"a": (1,)}, optional=["n"])
    require_same_tensors("load", {"a": (1,)}, {"a": (1,), "n": ()}, optional=["n"])


def test_tensors_without_partner_or_of_other_shape_raise_with_both_sides():
    with pytest.raises(CheckpointError) as caught:
        require_same_tensors("load", {"a": (1,), "b": (2,), "c": (3, 3)}, {"b": (2,), "c": (3,), "d": (4,)})
    assert str(caught.value) == (
        "load: model and file must hold the same tensors, got only in the model: ['a']; only in the file: ['d']; "
        "of different shape (model, file): ['c (3, 3) and (3,)']. "
        "Use the model that wrote the file, or give the job a names mapping."
    )


def test_optional_tensor_of_another_shape_raises():
    with pytest.raises(CheckpointError) as caught:
        require_same_tensors("load", {"n": (1,)}, {"n": ()}, optional=["n"])
    assert str(caught.value) == (
        "load: model and file must hold the same tensors, got only in the model: none; only in the file: none; "
        "of different shape (model, file): ['n (1,) and ()']. "
        "Use the model that wrote the file, or give the job a names mapping."
    )


# ---------------------------------------------------------------- what trains
def test_same_parameters_that_train_pass():
    require_same_trained("train_step", ["a", "b"], ["a", "b"])


@pytest.mark.parametrize(
    ("trained", "told"),
    [
        (["a", "b", "c"], "unfrozen: ['c'], frozen: none"),
        (["a"], "unfrozen: none, frozen: ['b']"),
        (["c"], "unfrozen: ['c'], frozen: ['a', 'b']"),
    ],
)
def test_parameters_frozen_or_unfrozen_during_fit_raise(trained, told):
    with pytest.raises(AdapterError) as caught:
        require_same_trained("train_step", ["a", "b"], trained)
    assert str(caught.value) == (
        f"train_step: the parameters that train must stay the same during fit, got {told}. "
        "Freeze before fit, and call fit again after a change."
    )
