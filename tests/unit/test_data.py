from __future__ import annotations

import os
import threading
import time

import numpy as np
import psutil
import pytest

from hvdtrain.data import Loader, prefetch, stack
from hvdtrain.errors import DataError
from tests.unit.fresh_process import run_fresh


class Numbers:
    """Sample ``i`` is ``10 i``."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"x": 10 * index}


class NumbersAtOnce(Numbers):
    def __init__(self):
        self.asked = []

    def __getitems__(self, rows):
        self.asked.append(rows)
        return [{"x": 10 * row} for row in rows]


def rows(*values):
    return np.array(values, dtype=np.int64)


def values_of(steps):
    return [[batch.data["x"].tolist() for batch in step] for step in steps]


def load_all(loader, steps, epoch=1):
    return list(loader.iter_steps(steps, epoch=epoch))


# ---------------------------------------------------------------- stack
@pytest.mark.parametrize(
    ("samples", "dtype", "values"),
    [
        ([1.5, 2.5], "float32", [1.5, 2.5]),
        ([np.float64(0.1), np.float64(0.2)], "float32", [np.float32(0.1), np.float32(0.2)]),
        ([np.float16(1), np.float16(2)], "float16", [1.0, 2.0]),
        ([1, 2], "int64", [1, 2]),
        ([np.uint8(1), np.uint8(255)], "uint8", [1, 255]),
        ([True, False], "bool", [True, False]),
        ([np.int32([1, 2]), np.int32([3, 4])], "int32", [[1, 2], [3, 4]]),
        (["ab", "cde"], "<U3", ["ab", "cde"]),
    ],
)
def test_stack_keeps_dtypes_but_makes_float64_float32(samples, dtype, values):
    stacked = stack(samples)
    assert (str(stacked.dtype), stacked.tolist()) == (dtype, values)


def test_stack_keeps_dicts_and_makes_lists_tuples():
    stacked = stack([{"a": [1, (2.0, 3)]}, {"a": [4, (5.0, 6)]}])
    (first, (second, third)) = stacked["a"]
    assert [part.tolist() for part in (first, second, third)] == [[1, 4], [2.0, 5.0], [3, 6]]
    assert isinstance(stacked["a"], tuple)


def test_stack_takes_keys_in_any_order():
    stacked = stack([{"x": 1, "y": 2}, {"y": 4, "x": 3}])
    assert {name: part.tolist() for name, part in stacked.items()} == {"x": [1, 3], "y": [2, 4]}


def test_stack_of_other_keys_raises():
    with pytest.raises(DataError) as caught:
        stack([{"x": 1, "y": 2}, {"x": 1, "z": 2}])
    assert str(caught.value) == (
        "stack: samples must have the same keys, got ['x', 'y'] and others. Check the data set."
    )


@pytest.mark.parametrize("other", [(1, 2, 3), 1])
def test_stack_of_other_parts_raises(other):
    with pytest.raises(DataError) as caught:
        stack([(1, 2), other])
    assert str(caught.value) == "stack: samples must have 2 parts each, got others. Check the data set."


def test_stack_of_other_shapes_raises():
    with pytest.raises(DataError) as caught:
        stack([np.zeros((3, 2)), np.zeros((2, 2)), np.zeros((3, 2))])
    assert str(caught.value) == (
        "stack: samples of a batch must have one shape, got (2, 2) and (3, 2). "
        "Pad them in the data set, or give the job a collate(samples)."
    )


@pytest.mark.parametrize("sample", [None, {1, 2}])
def test_stack_of_objects_raises(sample):
    with pytest.raises(DataError) as caught:
        stack([sample, sample])
    assert str(caught.value) == (
        f"stack: a sample must hold values that NumPy can keep, got {type(sample).__name__}. "
        "Return numbers, strings or arrays from the data set."
    )


# ---------------------------------------------------------------- prefetch
def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name == "hvdtrain-prefetch"]


def test_prefetch_yields_all_in_order_and_ends_its_thread():
    assert list(prefetch(iter(range(20)), 2)) == list(range(20))
    assert prefetch_threads() == []


def test_prefetch_of_nothing_yields_nothing():
    assert list(prefetch([], 2)) == []


def test_prefetch_yields_none_and_errors_that_are_items():
    error = ValueError("an item")
    assert list(prefetch([None, error, None], 1)) == [None, error, None]


def test_prefetch_raises_the_error_in_its_place():
    def items():
        yield 1
        yield 2
        raise KeyError("sample 3")

    seen = []
    with pytest.raises(KeyError, match="sample 3") as caught:
        seen.extend(prefetch(items(), 4))
    assert seen == [1, 2]
    assert [entry.name for entry in caught.traceback][-1] == "items"
    assert prefetch_threads() == []


def test_prefetch_closed_early_ends_its_thread():
    made = []

    def items():
        for number in range(1000):
            made.append(number)
            yield number

    stream = prefetch(items(), 2)
    assert next(stream) == 0
    stream.close()
    assert prefetch_threads() == []
    assert len(made) <= 5


def test_prefetch_makes_no_more_than_depth_ahead():
    made = []

    def items():
        for number in range(1000):
            made.append(number)
            yield number

    stream = prefetch(items(), 3)
    next(stream)
    time.sleep(0.3)
    # One was taken, three wait, and the thread holds one that finds no room.
    assert len(made) == 5
    stream.close()


# ---------------------------------------------------------------- loader
def test_loader_yields_the_micro_batches_of_each_step():
    steps = load_all(Loader(Numbers()), [[rows(3, 1), rows(0)], [], [rows(7)]])
    assert values_of(steps) == [[[30, 10], [0]], [], [[70]]]
    assert [[(batch.num_samples, batch.rows.tolist()) for batch in step] for step in steps] == [
        [(2, [3, 1]), (1, [0])],
        [],
        [(1, [7])],
    ]


@pytest.mark.parametrize("workers", [1, 3])
def test_loader_with_workers_yields_the_same(workers):
    steps = [[rows(3, 1, 2), rows(0)], [rows(7, 6, 5, 4)]]
    assert values_of(load_all(Loader(Numbers(), workers=workers), steps)) == [[[30, 10, 20], [0]], [[70, 60, 50, 40]]]


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_asks_getitems_for_all_rows_at_once(workers):
    data = NumbersAtOnce()
    steps = load_all(Loader(data, workers=workers), [[rows(3, 1), rows(0)]])
    assert values_of(steps) == [[[30, 10], [0]]]
    assert data.asked == [[3, 1], [0]]


def test_loader_hands_collate_the_samples():
    steps = load_all(Loader(Numbers(), collate=lambda samples: sum(s["x"] for s in samples)), [[rows(3, 1)]])
    assert steps[0][0].data == 40


def noisy(sample, rng):
    return {"x": sample["x"] + rng.random()}


def augmented(steps, *, seed=5, epoch=1, workers=0):
    """Return the augmented value of each row."""
    loaded = load_all(Loader(Numbers(), seed=seed, augment=noisy, workers=workers), steps, epoch=epoch)
    return {
        int(row): float(value)
        for step in loaded
        for batch in step
        for row, value in zip(batch.rows, batch.data["x"], strict=True)
    }


def test_augment_draws_from_seed_epoch_and_index():
    found = augmented([[rows(3, 1)]], seed=5, epoch=2)
    expected = {row: np.float32(10 * row + np.random.default_rng([5, 2, row]).random()) for row in (3, 1)}
    assert found == expected


def test_augment_ignores_order_batches_and_workers():
    whole = augmented([[rows(0, 1, 2, 3)]])
    assert augmented([[rows(3), rows(1)], [rows(2, 0)]]) == whole
    assert augmented([[rows(2, 3, 1, 0)]], workers=3) == whole


def test_augment_moves_with_epoch_and_seed():
    first, epoch, seed = (augmented([[rows(1)]], seed=s, epoch=e)[1] for s, e in [(5, 1), (5, 2), (6, 1)])
    assert len({first, epoch, seed}) == 3


def test_load_returns_samples_as_they_are():
    batch = Loader(Numbers(), augment=noisy).load(rows(1, 1))
    assert (batch.data["x"].tolist(), batch.num_samples, batch.rows.tolist()) == ([10, 10], 2, [1, 1])


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_raises_the_error_of_a_sample(workers):
    class Broken(Numbers):
        def __getitem__(self, index):
            if index == 5:
                raise OSError("sample 5 is torn")
            return super().__getitem__(index)

    seen = []
    with pytest.raises(OSError, match=r"^sample 5 is torn$"):
        seen.extend(Loader(Broken(), workers=workers).iter_steps([[rows(1)], [rows(2, 5)], [rows(3)]], epoch=1))
    assert values_of(seen) == [[[10]]]


class Readers(Numbers):
    """Remembers which process and which thread read each sample, and lets the threads take turns."""

    def __init__(self):
        self.seen = set()

    def __getitem__(self, index):
        self.seen.add((os.getpid(), threading.current_thread().name))
        time.sleep(0.001)
        return super().__getitem__(index)


def test_workers_are_threads_of_this_process_because_a_fork_under_mpi_is_unsafe():
    data, children, before = Readers(), set(), set(psutil.Process().children(recursive=True))
    for _ in Loader(data, workers=3).iter_steps([[rows(*range(8))]] * 20, epoch=1):
        children |= set(psutil.Process().children(recursive=True))
    assert children <= before
    assert {process for process, _ in data.seen} == {os.getpid()}
    assert len(data.seen) == 3
    assert all(name.startswith("hvdtrain-data") for _, name in data.seen)


def test_loader_reads_no_more_of_a_mapped_array_than_it_uses(tmp_path):
    """Of 4 GiB that take no room on the disk, 512 rows of 4 KiB, far from each other."""
    program = f"""
import numpy as np
from hvdtrain.data import Loader
from hvdtrain.memory import peak_bytes
data = np.memmap({str(tmp_path / "array.bin")!r}, np.float32, "w+", shape=(1 << 20, 1024))
before = peak_bytes()
steps = np.arange(512).reshape(16, 1, 32) * 2048
assert sum(batch.num_samples for step in Loader(data, workers=2).iter_steps(steps, epoch=1) for batch in step) == 512
print((peak_bytes() - before) >> 20)
"""
    printed, errors = run_fresh(program)
    assert errors == ""
    assert int(printed) < 128  # the system maps some pages beside each one that is read


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_closed_early_leaves_no_thread(workers):
    before = threading.active_count()
    steps = Loader(Numbers(), workers=workers).iter_steps([[rows(1)]] * 100, epoch=1)
    assert values_of([next(steps)]) == [[[10]]]
    steps.close()
    assert threading.active_count() == before
