"""Round trips of Keras's own optimizers, whatever slots they make: cases 15 and 20."""

from __future__ import annotations

import pytest

from tests.parallel import toy_tensorflow
from tests.parallel.fitting import Fitter
from tests.parallel.rules import require_round_trip

import keras  # isort: skip - after the adapter, which sets the backend

#: Class, and what is given beside the rate.
NATIVE = {
    "adagrad": (keras.optimizers.Adagrad, {"initial_accumulator_value": 0.5}),
    "rmsprop centered": (keras.optimizers.RMSprop, {"centered": True, "momentum": 0.5}),
    "nadam": (keras.optimizers.Nadam, {}),
    "adam": (keras.optimizers.Adam, {"amsgrad": True}),
    "adafactor": (keras.optimizers.Adafactor, {}),
    "ftrl": (keras.optimizers.Ftrl, {}),
}


@pytest.fixture
def toy(adapter, communicator):
    assert adapter == "tensorflow"
    return Fitter(toy_tensorflow, communicator)


@pytest.mark.parametrize("name", NATIVE)
def test_case_15_slots_of_native_optimizers_come_back_on_all_ranks(toy, tmp_path, name):
    kind, settings = NATIVE[name]
    require_round_trip(toy, tmp_path / "run", optimizer=lambda model: kind(learning_rate=0.01, **settings))
