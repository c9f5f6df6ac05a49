from __future__ import annotations

import json

import numpy as np
import pytest

from hvdtrain.errors import DataError
from hvdtrain.metrics import Meter, require_elements


def test_meter_divides_sums_once():
    meter = Meter(["loss", "accuracy"])
    meter.add({"loss": (6.0, 3.0), "accuracy": (3.0, 3.0)})
    meter.add({"loss": (1.0, 1.0), "accuracy": (0.0, 1.0)})
    assert meter.means() == {"loss": 1.75, "accuracy": 0.75}


def test_meter_over_ranks_weighs_by_samples():
    # Hits 1, 1, 1 on one rank and 1, 0 on the other: 0.8, and not the mean of 1.0 and 0.5.
    meter = Meter(["accuracy"])
    meter.add({"accuracy": (3.0, 3.0)})
    meter.reduce(lambda sums: sums + np.array([[1.0, 2.0]]))
    assert meter.means() == {"accuracy": 0.8}
    assert meter.weight("accuracy") == 5.0


def test_meter_without_weight_has_no_mean():
    meter = Meter(["loss", "other"])
    meter.add({"loss": (0.0, 0.0), "other": (1.0, 2.0)})
    assert meter.means() == {"loss": None, "other": 0.5}


def test_meter_reset_starts_at_zero():
    meter = Meter(["loss"])
    meter.add({"loss": (6.0, 3.0)})
    meter.reset()
    assert meter.means() == {"loss": None}
    meter.add({"loss": (1.0, 2.0)})
    assert meter.means() == {"loss": 0.5}


def test_meter_keeps_the_order_of_names_and_ignores_other_sums():
    meter = Meter(["b", "a"])
    meter.add({"a": (1.0, 1.0), "b": (2.0, 1.0), "c": (9.0, 1.0)})
    assert list(meter.means().items()) == [("b", 2.0), ("a", 1.0)]


def test_meter_means_are_plain_floats():
    meter = Meter(["loss"])
    meter.add({"loss": (np.float32(1.0), np.float32(2.0))})
    assert type(meter.means()["loss"]) is float


@pytest.mark.parametrize("shapes", [[(4,)], [(4,), (4,)], [(4, 7)], [(4, 7), (4, 7)], [[4]]])
def test_require_elements_takes_one_value_per_element(shapes):
    require_elements("loss", shapes, 4, "reduction='none'")


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_require_elements_with_fewer_values_than_samples_raises(shape):
    with pytest.raises(DataError) as caught:
        require_elements("loss", [shape], 4, "reduction='none'")
    assert str(caught.value) == (
        f"loss: must return one value per element, got shape {list(shape)} for 4 samples. "
        "A mean hides how much each rank weighs: use reduction='none' and return what it gives."
    )


def test_require_elements_with_weights_of_another_shape_raises():
    with pytest.raises(DataError) as caught:
        require_elements("metric 'accuracy'", [(4, 7), (4,)], 4, "reduction='none'")
    assert str(caught.value) == "metric 'accuracy': values and weights must have one shape, got [4, 7] and [4]."


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        ([None], "1 values of shapes [None]"),
        ([(4,), None], "2 values of shapes [(4,), None]"),
        ([(4,), (4,), (4,)], "3 values of shapes [(4,), (4,), (4,)]"),
        ([], "0 values of shapes []"),
    ],
)
def test_require_elements_with_something_else_raises(shapes, told):
    with pytest.raises(DataError) as caught:
        require_elements("loss", shapes, 4, "reduction='none'")
    assert str(caught.value) == (f"loss: must return a tensor of per-element values, or (values, weights), got {told}.")


def test_meter_restored_from_its_sums_goes_on_to_the_last_bit():
    whole, first, second = Meter(["loss", "b"]), Meter(["loss", "b"]), Meter(["loss", "b"])
    parts = [{"loss": (0.1 * n, n / 3), "b": (1 / n, 1.0)} for n in range(1, 9)]
    for part in parts:
        whole.add(part)
    for part in parts[:5]:
        first.add(part)
    second.restore(json.loads(json.dumps(first.sums())))
    for part in parts[5:]:
        second.add(part)
    assert second.means() == whole.means()


def test_meter_restored_from_sums_leaves_them_alone():
    sums = [[1.0, 2.0]]
    meter = Meter(["loss"])
    meter.restore(sums)
    meter.add({"loss": (1.0, 1.0)})
    assert sums == [[1.0, 2.0]]
