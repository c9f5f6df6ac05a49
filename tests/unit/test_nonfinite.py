from __future__ import annotations

import numpy as np

from hvdtrain.data import MicroBatch
from hvdtrain.nonfinite import find_nonfinite


class Checker:
    """Stands where a trainer does: a batch is finite when its numbers are."""

    def make_batch(self, micro_batch: MicroBatch):
        return micro_batch.data

    def is_finite(self, batch) -> bool:
        return bool(np.isfinite(batch["x"]).all())


def batch_of(values, rows=None) -> MicroBatch:
    x = np.array(values, dtype=np.float32)
    return MicroBatch({"x": x, "y": (x,)}, len(x), None if rows is None else np.array(rows))


def test_find_nonfinite_names_the_rows_of_the_data_set():
    batches = [batch_of([1.0, 2.0], [7, 3]), batch_of([np.inf, 1.0, np.nan], [4, 9, 0])]
    assert find_nonfinite(Checker(), batches) == "samples 4, 0"


def test_find_nonfinite_of_a_stream_names_places_in_the_batch():
    assert find_nonfinite(Checker(), [batch_of([1.0]), batch_of([1.0, np.nan])]) == "samples number 1 of micro-batch 1"


def test_find_nonfinite_of_many_lists_the_first_eight():
    found = find_nonfinite(Checker(), [batch_of([np.nan] * 11, range(11))])
    assert found == "samples 0, 1, 2, 3, 4, 5, 6, 7 and 3 more"


def test_find_nonfinite_without_any_is_empty():
    assert find_nonfinite(Checker(), [batch_of([1.0, 2.0], [0, 1])]) == ""
