from __future__ import annotations

from hvdtrain.model_size import ModelSize, model_size

TENSORS = {
    "fc.weight": ((10, 20), "float32"),
    "fc.bias": ((10,), "float32"),
    "norm.weight": ((10,), "bfloat16"),
    "norm.running_mean": ((10,), "float32"),
    "norm.num_batches_tracked": ((), "int64"),
    "fc.weight/exp_avg": ((10, 20), "float32"),
    "fc.weight/exp_avg_sq": ((10, 20), "float32"),
    "fc.weight/running_mean": ((3,), "float64"),
}


def test_sizes_are_those_worked_out_by_hand():
    assert model_size(TENSORS) == ModelSize(
        num_parameters=220,
        num_tensors=3,
        weights=800 + 40 + 20 + 40 + 8,
        gradients=800 + 40 + 20,
        slots=800 + 800 + 24,
    )


def test_a_replica_holds_weights_gradients_and_slots():
    assert model_size(TENSORS).held == 908 + 860 + 1624


def test_no_tensor_is_no_byte():
    assert model_size({}) == ModelSize(0, 0, 0, 0, 0)
