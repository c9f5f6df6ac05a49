from __future__ import annotations

import itertools
import os

import numpy as np
import pytest

from hvdtrain.compare import compare_pair, compare_runs
from hvdtrain.errors import ConfigError
from hvdtrain.finished_run import Run
from tests.unit.made_runs import array, make_run, row, traced, write_run

W = {"w": [3.0, 4.0]}  # of norm 5


@pytest.fixture
def pair(tmp_path):
    """A function of two lists of rows: the runs that made them, with equal weights unless given; to be called often."""
    numbers = itertools.count()

    def make(rows_a, rows_b, weights_a=W, weights_b=W, *, more_a=None, more_b=None):
        folder = tmp_path / str(next(numbers))
        a = make_run(folder / "a", rows_a, weights_a, **(more_a or {}))
        return a, make_run(folder / "b", rows_b, weights_b, **(more_b or {}))

    return make


# ---------------------------------------------------------------- reading
def test_run_read_holds_what_the_folder_says(tmp_path):
    rows = [row(1, 2.0), row(2, 1.5)]
    run = make_run(tmp_path / "run", rows, W, framework="tensorflow", size=3, notes=["dropout"])
    assert (run.framework, run.size, run.name, run.notes) == ("tensorflow", 3, "tensorflow x 3", ("dropout",))
    assert {seen: found["loss"] for seen, found in run.rows.items()} == {4: 2.0, 8: 1.5}
    assert run.trace == {}
    np.testing.assert_array_equal(run.weights["w"], array([3.0, 4.0]))


def test_run_read_of_a_folder_without_summary_is_refused(tmp_path):
    path = write_run(tmp_path / "run", [row(1, 2.0)], W)
    (path / "summary.json").unlink()
    with pytest.raises(ConfigError) as caught:
        Run.read(path)
    assert str(caught.value) == (
        f"compare: {path} must be the folder of a finished run, got [Errno 2] No such file or directory: "
        f"'{path}/summary.json'."
    )


def test_run_read_of_a_folder_without_checkpoint_is_refused(tmp_path):
    path = write_run(tmp_path / "run", [row(1, 2.0)], W)
    (path / "checkpoints").rename(path / "elsewhere")
    with pytest.raises(ConfigError) as caught:
        Run.read(path)
    assert str(caught.value) == (f"compare: {path} must be the folder of a finished run, got no checkpoint in it.")


def test_run_read_of_a_damaged_checkpoint_is_refused(tmp_path):
    path = write_run(tmp_path / "run", [row(1, 2.0)], W)
    (path / "checkpoints" / "step-00000001" / "model.safetensors").write_bytes(b"half")
    with pytest.raises(ConfigError, match=r"^compare: .* must be the folder of a finished run, got find_latest: no "):
        Run.read(path)


# ---------------------------------------------------------------- the same
def test_equal_runs_are_the_same_with_no_difference(pair):
    rows = [row(1, 2.0), row(2, 1.0)]
    result = compare_runs(*pair(rows, rows), rtol=1e-5)
    assert result.is_same
    assert (result.loss, result.grad_norm, result.weights, result.num_rows) == (0.0, 0.0, 0.0, 2)


def test_rows_are_aligned_by_samples_seen_and_not_by_step(pair):
    # a takes 4 samples an update, b takes 2: step 1 of a is step 2 of b.
    a = [row(1, 5.0), row(2, 3.0)]
    b = [row(1, 7.0, batch=2), row(2, 5.0, batch=2), row(3, 6.0, batch=2), row(4, 3.0, batch=2)]
    result = compare_runs(*pair(a, b), rtol=1e-5)
    assert (result.is_same, result.num_rows, result.loss) == (True, 2, 0.0)


def test_runs_without_a_shared_row_are_refused(pair):
    a, b = pair([row(1, 2.0)], [row(1, 2.0, batch=3)])
    with pytest.raises(ConfigError) as caught:
        compare_runs(a, b, rtol=1e-5)
    assert str(caught.value) == (
        f"compare: runs must share counts of samples seen, got none in {a.path} and {b.path}. Train both with the "
        "same global_batch_size and log_every_steps."
    )


def test_different_tensors_are_listed_on_both_sides(pair):
    rows = [row(1, 2.0)]
    a, b = pair(rows, rows, {"w": [1.0], "z": [1.0], "y": [1.0]}, {"w": [1.0], "x": [1.0]})
    with pytest.raises(ConfigError) as caught:
        compare_runs(a, b, rtol=1e-5)
    assert str(caught.value) == (
        f"compare: runs must hold the same tensors, got only in {a.path}: ['y', 'z']; only in {b.path}: ['x']. "
        "Give the layers the same names, or the job a names mapping."
    )


def test_tensors_of_one_side_alone_are_listed_with_none_on_the_other(pair):
    rows = [row(1, 2.0)]
    a, b = pair(rows, rows, {"w": [1.0]}, {"w": [1.0], "x": [1.0]})
    with pytest.raises(ConfigError, match=r"only in \S+/a: none; only in \S+/b: \['x'\]\."):
        compare_runs(a, b, rtol=1e-5)


@pytest.mark.parametrize("other", [[1.0], [1.0, 1.0, 1.0]])
def test_tensors_of_different_shape_are_refused_by_name(pair, other):
    rows = [row(1, 2.0)]
    a, b = pair(rows, rows, {"w": [1.0, 1.0]}, {"w": other})
    with pytest.raises(ConfigError) as caught:
        compare_runs(a, b, rtol=1e-5)
    assert str(caught.value) == (
        f"compare: tensors must have the same shape, got w (2,) in {a.path} and ({len(other)},) in {b.path}. "
        "Compare runs of the same model."
    )


# ---------------------------------------------------------------- losses and norms
def test_loss_tolerance_is_relative_to_the_larger_loss(pair):
    # 1e-3 on 2.0: |a - b| / max(a, b).
    result = compare_runs(*pair([row(1, 2.0)], [row(1, 1.998)]), rtol=1.01e-3)
    assert result.loss == pytest.approx(0.002 / 2.0)
    assert result.is_same


def test_loss_beyond_tolerance_names_step_and_both_values(pair):
    result = compare_runs(*pair([row(1, 2.0), row(2, 2.0)], [row(1, 2.0), row(2, 1.998)]), rtol=0.99e-3)
    assert result.first_fault == "step 2: loss 2 and 1.998"
    assert not result.is_same


@pytest.mark.parametrize(("last", "is_same"), [(0.010009, True), (0.010011, False)])
def test_small_loss_is_compared_to_one_percent_of_the_first(pair, last, is_same):
    # First loss 10, so the floor is 0.1 and 1e-4 of it is 1e-5.
    a, b = [row(1, 10.0), row(2, 0.01)], [row(1, 10.0), row(2, last)]
    result = compare_runs(*pair(a, b), rtol=1e-4)
    assert result.loss == pytest.approx((last - 0.01) / 0.1, rel=1e-6)
    assert result.is_same is is_same


@pytest.mark.parametrize(("norm", "is_same"), [(3.0 * (1 - 9e-5), True), (3.0 * (1 - 11e-5), False)])
def test_gradient_norm_has_ten_times_the_tolerance_of_the_loss(pair, norm, is_same):
    result = compare_runs(*pair([row(1, 2.0, 3.0)], [row(1, 2.0, norm)]), rtol=1e-5)
    assert result.grad_norm == pytest.approx((3.0 - norm) / 3.0, rel=1e-6)
    assert result.is_same is is_same


def test_infinite_loss_on_one_side_is_a_fault(pair):
    result = compare_runs(*pair([row(1, 2.0)], [row(1, float("nan"))]), rtol=1e-5)
    assert result.first_fault == "step 1: loss 2 and nan"


def test_loss_that_is_none_on_both_sides_is_no_difference(pair):
    rows = [row(1, 2.0), row(2, None)]
    assert compare_runs(*pair(rows, rows), rtol=1e-5).is_same


def test_loss_that_is_none_on_one_side_is_a_fault_of_its_step(pair):
    result = compare_runs(*pair([row(1, 2.0), row(2, 1.0)], [row(1, 2.0), row(2, None)]), rtol=1e-5)
    assert result.first_fault == "step 2: loss 1 and none"


def test_first_fault_is_the_earliest_of_all_kinds(pair):
    # The gradient leaves at step 1, the loss at step 2.
    a, b = [row(1, 2.0, 1.0), row(2, 2.0)], [row(1, 2.0, 1.5), row(2, 1.0)]
    assert compare_runs(*pair(a, b), rtol=1e-5).first_fault == "step 1: grad_norm 1 and 1.5"


# ---------------------------------------------------------------- weights
@pytest.mark.parametrize(("moved", "is_same"), [(4.0 + 4e-4, True), (4.0 + 6e-4, False)])
def test_final_weights_have_ten_times_the_tolerance_relative_to_their_norm(pair, moved, is_same):
    # Norm 5, so 1e-4 of it is 5e-4.
    rows = [row(1, 2.0), row(7, 1.0)]
    result = compare_runs(*pair(rows, rows, W, {"w": [3.0, moved]}), rtol=1e-5)
    assert result.weights == pytest.approx((moved - 4.0) / 5.0, rel=2e-3)
    assert (result.worst_tensor, result.is_same) == ("w", is_same)
    if not is_same:
        assert result.first_fault == "step 7: tensor w differs by 1.20e-04 of its norm"


def test_worst_tensor_is_named_among_several(pair):
    rows = [row(1, 2.0)]
    a, b = {"u": [1.0], "v": [1.0], "w": [1.0]}, {"u": [1.0], "v": [1.5], "w": [1.25]}
    result = compare_runs(*pair(rows, rows, a, b), rtol=1e-5)
    assert (result.worst_tensor, result.weights) == ("v", 0.5)


def test_tensor_of_zeros_is_compared_absolutely(pair):
    rows = [row(1, 2.0)]
    result = compare_runs(*pair(rows, rows, {"w": [0.0, 0.0]}, {"w": [0.0, 0.25]}), rtol=1e-5)
    assert result.weights == 0.25


def test_ignored_suffixes_are_not_compared(pair):
    rows = [row(1, 2.0)]
    a, b = {"w": [1.0], "n.running_var": [1.0]}, {"w": [1.0], "n.running_var": [9.0]}
    assert compare_runs(*pair(rows, rows, a, b), rtol=1e-5, ignore=("running_var",)).is_same


def test_weights_that_are_no_numbers_on_one_side_differ(pair):
    rows = [row(1, 2.0)]
    a, b = {"u": [float("nan")], "v": [1.0]}, {"u": [1.0], "v": [1.0]}
    result = compare_runs(*pair(rows, rows, a, b), rtol=1e-5)
    assert (result.is_same, result.worst_tensor) == (False, "u")


def test_bool_and_integer_tensors_are_compared_by_value(pair):
    rows = [row(1, 2.0)]
    a = {"mask": np.array([True, False]), "count": np.array(3)}
    b = {"mask": np.array([True, True]), "count": np.array(3)}
    assert compare_runs(*pair(rows, rows, a, b), rtol=1e-5).worst_tensor == "mask"


# ---------------------------------------------------------------- traces
def test_first_fault_of_a_trace_names_step_and_tensor(pair):
    rows = [row(step, 2.0) for step in (1, 2, 3)]
    grads = {"u": 1.0, "v": 1.0}
    one = [traced(1, grads, {"u": 1.0, "v": 2.0}), traced(2, grads, {"u": 1.0, "v": 2.0})]
    other = [traced(1, grads, {"u": 1.0, "v": 2.0}), traced(2, grads, {"u": 1.0, "v": 1.5})]
    weights = {"u": [1.0], "v": [2.0]}
    result = compare_runs(
        *pair(rows, rows, weights, {"u": [1.0], "v": [1.0]}, more_a={"trace": one}, more_b={"trace": other}),
        rtol=1e-5,
    )
    assert result.first_fault == "step 2: tensor v differs by 2.50e-01 of its norm"


def test_traced_weights_of_equal_norm_are_told_apart_where_saved(pair):
    rows = [row(1, 2.0), row(2, 2.0)]
    trace = [traced(step, {"w": 1.0}, {"w": 5.0}) for step in (1, 2)]
    more_a = {"trace": trace, "saved": {2: {"w": [3.0, 4.0]}}}
    more_b = {"trace": trace, "saved": {2: {"w": [4.0, 3.0]}}}
    result = compare_runs(*pair(rows, rows, more_a=more_a, more_b=more_b), rtol=1e-5)
    # The square root of 2, over 5.
    assert result.first_fault == "step 2: tensor w differs by 2.83e-01 of its norm"


def test_traced_weights_are_aligned_by_samples_seen_and_not_by_step(pair):
    # Both hold [3, 4] after 8 samples: step 2 of a, step 4 of b; b was elsewhere at its own step 2.
    a = {"trace": [traced(2, {"w": 1.0}, {"w": 5.0})], "saved": {2: {"w": [3.0, 4.0]}}}
    b = {
        "trace": [traced(4, {"w": 1.0}, {"w": 5.0}, batch=2)],
        "saved": {2: {"w": [4.0, 3.0]}, 4: {"w": [3.0, 4.0]}},
    }
    result = compare_runs(*pair([row(2, 2.0)], [row(4, 2.0, batch=2)], more_a=a, more_b=b), rtol=1e-5)
    assert result.first_fault is None


def test_tensors_whose_gradient_is_rounding_noise_stand_apart(pair):
    rows = [row(1, 2.0)]
    trace = [traced(1, {"w": 1.0, "key.bias": 0.9e-6}, {"w": 1.0, "key.bias": 1.0})]
    weights = [{"w": [1.0], "key.bias": [1.0]}, {"w": [1.0], "key.bias": [1.5]}]
    result = compare_runs(*pair(rows, rows, *weights, more_a={"trace": trace}, more_b={"trace": trace}), rtol=1e-5)
    assert result.is_same
    assert (result.noise, result.weights) == ({"key.bias": 0.5}, 0.0)


def test_tensor_with_a_real_gradient_in_one_step_of_one_run_is_no_noise(pair):
    rows = [row(1, 2.0), row(2, 2.0)]
    quiet = [traced(step, {"w": 1.0, "b": 1e-9}, {"w": 1.0, "b": 1.0}) for step in (1, 2)]
    loud = [quiet[0], traced(2, {"w": 1.0, "b": 1e-3}, {"w": 1.0, "b": 1.0})]
    weights = [{"w": [1.0], "b": [1.0]}, {"w": [1.0], "b": [1.5]}]
    result = compare_runs(*pair(rows, rows, *weights, more_a={"trace": quiet}, more_b={"trace": loud}), rtol=1e-5)
    assert (result.noise, result.worst_tensor, result.is_same) == ({}, "b", False)


def test_runs_without_traces_have_no_noise(pair):
    rows = [row(1, 2.0)]
    assert compare_runs(*pair(rows, rows), rtol=1e-5).noise == {}


# ---------------------------------------------------------------- what cannot be equal
OTHER_FRAMEWORK = "dropout draws other numbers in each framework"
OTHER_SIZE = {
    "batch norm": "batch norm uses the statistics of each rank",
    "dropout": "dropout draws other numbers on each rank",
}


@pytest.fixture
def compared(pair):
    """A function of notes and the second run: the pair of runs whose losses, or else running variances, differ."""

    def make(notes, framework, size, *, loss=1.0, running_var=1.0):
        other = {"notes": notes, "framework": framework, "size": size}
        weights = [{"w": [1.0], "n.running_var": [1.0]}, {"w": [1.0], "n.running_var": [running_var]}]
        runs = pair([row(1, 2.0)], [row(1, loss)], *weights, more_a={"notes": notes}, more_b=other)
        return compare_pair(*runs, rtol=1e-5)

    return make


@pytest.mark.parametrize("notes", [[], ["native optimizer"]])
@pytest.mark.parametrize(("framework", "size"), [("torch", 1), ("torch", 2), ("tensorflow", 1), ("tensorflow", 2)])
def test_compare_pair_without_a_reason_is_a_fault_when_it_differs(compared, notes, framework, size):
    found = compared(notes, framework, size)
    assert (found.excuses, found.is_fault) == ((), True)


@pytest.mark.parametrize("notes", [["dropout"], ["batch norm"], ["batch norm", "dropout"]])
def test_compare_pair_of_two_numbers_of_ranks_is_excused_with_reasons(compared, notes):
    found = compared(notes, "torch", 2)
    assert (found.excuses, found.is_fault) == (tuple(OTHER_SIZE[note] for note in notes), False)


@pytest.mark.parametrize(("framework", "size"), [("torch", 2), ("tensorflow", 1)])
@pytest.mark.parametrize("note", ["bf16", "fp16 compression"])
def test_compare_pair_of_narrow_arithmetic_is_excused_with_the_reason(compared, note, framework, size):
    found = compared([note], framework, size)
    assert (len(found.excuses), found.is_fault) == (1, False)
    assert found.excuses[0].startswith(f"{note} rounds to {'8' if note == 'bf16' else '11'} bits ")
    assert compared([note], "torch", 1).is_fault


@pytest.mark.parametrize("notes", [["dropout"], ["batch norm", "dropout"]])
def test_compare_pair_of_two_frameworks_with_dropout_is_excused_with_reasons(compared, notes):
    found = compared(notes, "tensorflow", 1)
    assert (found.excuses, found.is_fault) == ((OTHER_FRAMEWORK,), False)


def test_compare_pair_of_two_frameworks_with_batch_norm_has_no_excuse_for_a_loss(compared):
    assert compared(["batch norm"], "tensorflow", 1).is_fault


def test_compare_pair_of_two_frameworks_leaves_running_statistics_out(compared):
    found = compared(["batch norm"], "tensorflow", 1, loss=2.0, running_var=1.5)
    assert (found.comparison.is_same, found.is_fault) == (True, False)


def test_compare_pair_of_other_framework_and_size_is_excused_by_the_statistics_of_ranks(compared):
    found = compared(["batch norm"], "tensorflow", 2)
    assert OTHER_SIZE["batch norm"] in found.excuses
    assert not found.is_fault


@pytest.mark.parametrize("notes", [["dropout"], ["batch norm"], ["batch norm", "dropout"]])
def test_compare_pair_of_a_repeated_run_has_no_excuse(compared, notes):
    found = compared(notes, "torch", 1)
    assert (found.excuses, found.is_fault) == ((), True)


@pytest.mark.parametrize(
    ("notes", "framework", "size", "left_out"),
    [
        (["dropout"], "tensorflow", 2, ""),
        (["batch norm"], "torch", 1, ""),
        (["batch norm"], "torch", 2, "running statistics: batch norm uses the statistics of each rank"),
        (
            ["batch norm"],
            "tensorflow",
            1,
            "running statistics: batch norm keeps the unbiased variance in PyTorch, the biased in Keras",
        ),
    ],
)
def test_compare_pair_says_what_it_left_out(compared, notes, framework, size, left_out):
    assert compared(notes, framework, size).left_out == left_out


def test_compare_pair_of_a_repeated_run_compares_running_statistics(compared):
    assert compared(["batch norm"], "torch", 1, loss=2.0, running_var=1.5).is_fault


@pytest.mark.parametrize(
    "break_folder",
    [
        lambda folder: _as_pipe(folder / "summary.json"),
        lambda folder: _as_pipe(folder / "metrics.jsonl"),
        lambda folder: _as_link(folder / "metrics.jsonl", "/dev/zero"),
        lambda folder: (folder / "summary.json").write_text("{}"),
        lambda folder: (folder / "summary.json").write_text("[" * 100_000),
        lambda folder: (folder / "metrics.jsonl").write_text('["train"]\n'),
        lambda folder: (folder / "metrics.jsonl").write_text('{"event": "train"}\n'),
    ],
)
def test_a_strangers_folder_is_refused_and_neither_waited_for_nor_believed(break_folder, tmp_path):
    folder = write_run(tmp_path / "run", [row(1, 2.0)], W)
    break_folder(folder)
    with pytest.raises(ConfigError, match=r"^compare: .* must be the folder of a finished run, got "):
        Run.read(folder)


def _as_pipe(path):
    path.unlink()
    os.mkfifo(path)


def _as_link(path, target):
    path.unlink()
    path.symlink_to(target)


# ---------------------------------------------------------------- runs of different length
def rows_until(last):
    return [row(step, 5.0 - step) for step in range(1, last + 1)]


def test_runs_of_different_length_are_compared_as_far_as_both_go(tmp_path):
    a = make_run(tmp_path / "a", rows_until(2), {"w": [1.0]})
    b = make_run(tmp_path / "b", rows_until(4), {"w": [9.0]}, checkpoints={2: {"w": [1.0]}, 3: {"w": [5.0]}})
    pair = compare_pair(a, b, rtol=1e-5)
    assert (pair.is_fault, pair.comparison.weights, pair.comparison.weights_seen) == (False, 0.0, 8)
    assert pair.remarks == (
        "the runs end after 8 and 16 samples; rows were compared up to 8",
        "weights were compared at the checkpoints after 8 samples",
    )


def test_weights_of_a_common_checkpoint_that_differ_are_a_fault_of_its_step(tmp_path):
    a = make_run(tmp_path / "a", rows_until(3), {"w": [1.0]}, checkpoints={2: {"w": [1.5]}})
    b = make_run(tmp_path / "b", rows_until(4), {"w": [1.0]}, checkpoints={2: {"w": [1.0]}})
    result = compare_pair(a, b, rtol=1e-5).comparison
    assert result.first_fault.startswith("step 2: tensor w differs by ")


def test_weights_of_different_places_are_not_compared(tmp_path):
    a, b = make_run(tmp_path / "a", rows_until(2), {"w": [1.0]}), make_run(tmp_path / "b", rows_until(4), {"w": [9.0]})
    pair = compare_pair(a, b, rtol=1e-5)
    assert (pair.is_fault, pair.comparison.weights_seen) == (False, None)
    assert pair.remarks[1].startswith("weights were not compared, for the runs have no checkpoint at the same step")


def test_a_damaged_common_checkpoint_is_passed_over(tmp_path):
    saved = {1: {"w": [3.0]}, 2: {"w": [1.0]}}
    a = make_run(tmp_path / "a", rows_until(3), {"w": [1.0]}, checkpoints=saved)
    b = make_run(tmp_path / "b", rows_until(4), {"w": [1.0]}, checkpoints=saved)
    (b.path / "checkpoints" / "step-00000002" / "model.safetensors").write_bytes(b"half")
    assert compare_pair(a, b, rtol=1e-5).comparison.weights_seen == 4


@pytest.mark.parametrize(("other", "is_told"), [("b", True), ("a", False), ("", False)])
def test_runs_that_began_from_different_weights_say_so(tmp_path, other, is_told):
    a = make_run(tmp_path / "a", rows_until(2), {"w": [1.0]}, began_from="a")
    b = make_run(tmp_path / "b", rows_until(2), {"w": [1.0]}, began_from=other)
    remarks = compare_pair(a, b, rtol=1e-5).remarks
    assert [text.partition(";")[0] for text in remarks] == ["the runs began from different weights"] * is_told
    assert compare_pair(a, b, rtol=1e-5).comparison.began_apart == is_told
