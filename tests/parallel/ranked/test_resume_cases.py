"""Resume, and updates that are not finite, on real ranks: cases 8, 11, 14 to 19, 21, 22, 31, 32, 37 to 39.

``tmp_path`` is another folder on each rank, as on hosts without a shared disk: a run folder in it is the root's alone.
"""

from __future__ import annotations

import importlib
import shutil
import threading

import numpy as np
import pytest

from hvdtrain.checkpoint import list_checkpoints, load
from hvdtrain.errors import CheckpointError, NonFiniteError, ReplicaError
from hvdtrain.resume import ResumeRequest
from tests.harness import assert_on_all_ranks
from tests.parallel.fitting import AtEnd, Fitter, Steps
from tests.parallel.rules import (
    RESUME,
    AtBegin,
    bits,
    require_round_trip,
    require_run,
    require_whole,
    weight_of_one_process,
)

TOLERANCE = 1e-6
#: Their order and their sums round, so that another order of addition or another sample shows.
SAMPLES = [float(x) for x in np.random.default_rng(3).normal(size=12).astype(np.float32)]


@pytest.fixture
def toy(adapter, communicator):
    return Fitter(importlib.import_module(f"tests.parallel.toy_{adapter}"), communicator)


@pytest.fixture
def folder(tmp_path):
    """A run folder on this rank's own disk."""
    return tmp_path / "run"


def close(expected):
    return pytest.approx(expected, abs=TOLERANCE, rel=TOLERANCE)


def logged(caplog, level):
    """Return what the package itself logged at this level."""
    return [r.getMessage() for r in caplog.records if r.name.startswith("hvdtrain") and r.levelname == level]


# ---------------------------------------------------------------- 11, 17, 19: the uninterrupted run


@pytest.mark.parametrize("rule", ["sgd", "adam"])
@pytest.mark.parametrize("is_same_model", [False, True])
def test_case_11_three_more_steps_after_loading_and_wrapping_again_are_the_uninterrupted_run(
    toy, folder, rule, is_same_model
):
    settings = {"rule": rule, "global_batch_size": 2, "weight_decay": 0.1, "shuffle": True, "seed": 1}
    settings |= {"momentum": 0.9} if rule == "sgd" else {}
    whole = toy.fit(SAMPLES, **settings)
    model = toy.toy.Toy() if is_same_model else toy.toy.Toy
    toy.fit(SAMPLES, model=model, run_dir=folder, max_steps=3, **settings)
    run = toy.fit(SAMPLES, model=model, run_dir=folder, resume=RESUME, **settings)
    assert bits(run) == bits(whole)
    settings.pop("shuffle")
    assert run.w == close(weight_of_one_process(SAMPLES, settings.pop("global_batch_size"), **settings))
    require_run(toy, folder, [3, 6])


def test_case_11_weights_without_their_slots_would_end_elsewhere(toy, shared_tmp_path):
    settings = {"global_batch_size": 2, "momentum": 0.9}
    whole = toy.fit(SAMPLES, **settings)
    toy.fit(SAMPLES, run_dir=shared_tmp_path / "run", max_steps=3, **settings)
    path = shared_tmp_path / "run" / "checkpoints" / "step-00000003"
    run = toy.fit(SAMPLES[6:], init_from=path, **settings)
    assert abs(run.w - whole.w) > 1e-3


@pytest.mark.ranks(2)
def test_case_11_state_that_the_root_alone_loads_and_does_not_share_is_noticed(toy, folder):
    toy.fit(SAMPLES, run_dir=folder, max_steps=3, global_batch_size=2)
    with pytest.raises(ReplicaError, match=r"^start: all ranks must hold the same state, got a difference in 'w'"):
        toy.trainer(kind="SilentTrainer", run_dir=folder, resume=RESUME, global_batch_size=2).fit(
            [{"x": np.float32(x)} for x in SAMPLES]
        )


@pytest.mark.ranks(2)
def test_case_17_folder_of_the_root_alone_is_continued_on_both_ranks(toy, folder):
    toy.fit(SAMPLES, run_dir=folder, max_steps=4, global_batch_size=2)
    assert toy.communicator.all_gather(folder.exists()) == [True, False]
    begin = AtBegin()
    run = toy.fit(SAMPLES, run_dir=folder, resume=RESUME, global_batch_size=2, callbacks=[begin])
    assert toy.communicator.all_gather(begin.step) == [4, 4]
    assert run.w == close(weight_of_one_process(SAMPLES, 2))
    require_run(toy, folder, [4, 6])


@pytest.mark.ranks(2)
def test_case_17_folder_of_another_rank_alone_is_not_seen_and_both_start_fresh(toy, shared_tmp_path, folder, caplog):
    toy.fit(SAMPLES, run_dir=shared_tmp_path / "run", max_steps=4, global_batch_size=2)
    if toy.rank == 1:
        shutil.copytree(shared_tmp_path / "run", folder)
    begin = AtBegin()
    with caplog.at_level("INFO", "hvdtrain.resume"):
        run = toy.fit(SAMPLES, run_dir=folder, resume=RESUME, global_batch_size=2, callbacks=[begin])
    assert toy.communicator.all_gather(begin.step) == [0, 0]
    told = toy.communicator.broadcast(f"resume: no checkpoint in {folder / 'checkpoints'}, starting fresh")
    assert toy.communicator.all_gather(logged(caplog, "WARNING")) == [[told], []]
    assert run.w == close(weight_of_one_process(SAMPLES, 2))
    require_whole(folder, [6] if toy.rank == 0 else [4])


def test_case_19_accumulated_adamw_loaded_by_the_root_alone_agrees_at_each_step(toy, folder):
    settings = {"rule": "adamw", "weight_decay": 0.1, "learning_rate": 0.05, "epochs": 7}
    cut = {"batch_size": 2 // toy.size, "backward_passes_per_step": 2, "max_steps": 20}
    whole, second = Steps(), Steps()
    expected = toy.fit(SAMPLES, callbacks=[whole], **settings, **cut)
    toy.fit(SAMPLES, run_dir=folder, **settings, **{**cut, "max_steps": 7})
    run = toy.fit(SAMPLES, run_dir=folder, resume=RESUME, callbacks=[second], **settings, **cut)
    assert toy.communicator.all_gather(second.ws) == [whole.ws[7:]] * toy.size
    assert len(whole.ws) == 20
    assert bits(run) == bits(expected)
    # Twenty updates in float32.
    assert run.w == pytest.approx(weight_of_one_process(SAMPLES, 4, max_steps=20, **settings), rel=1e-5)
    require_run(toy, folder, [7, 20])


# ---------------------------------------------------------------- 14, 22: the learning rate


def test_case_14_rate_of_the_script_follows_the_schedule_for_the_samples_seen(toy, folder):
    settings = {"global_batch_size": 2, "epochs": 2, "decay": "linear", "decay_epochs": 2, "run_dir": folder}
    toy.fit([1.0] * 8, max_steps=3, learning_rate=0.01, **settings)
    with pytest.raises(CheckpointError, match=r"learning_rate \(0\.01 in the checkpoint, 0\.1 now\)") as caught:
        toy.fit([1.0] * 8, resume=RESUME, learning_rate=0.1, **settings)
    assert caught.value.exit_code == 2
    watch = Steps()
    allowing = ResumeRequest(is_wanted=True, allows_config_change=True)
    run = toy.fit([1.0] * 8, resume=allowing, learning_rate=0.1, log_every_steps=1, callbacks=[watch], **settings)
    rates = [row["learning_rate"] for row in watch.rows]
    assert rates == [close(0.1 * (8 - step) / 8) for step in range(3, 8)]
    assert toy.communicator.all_gather(rates) == [rates] * toy.size
    # 8, 7 and 6 eighths of 0.01, then 5 down to 1 eighths of 0.1.
    assert run.w == close(-0.01 * 21 / 8 - 0.1 * 15 / 8)
    require_run(toy, folder, [3, 8])


def test_case_22_linear_scaling_is_applied_once_however_often_a_run_is_continued(toy, folder):
    rates = []
    for steps in (1, 2, 3):
        watch, request = Steps(), RESUME if steps > 1 else None
        run = toy.fit(
            [1.0] * 12,
            global_batch_size=4,
            lr_scaling="linear",
            base_batch_size=2,
            log_every_steps=1,
            max_steps=steps,
            run_dir=folder,
            resume=request,
            callbacks=[watch],
        )
        rates += [row["learning_rate"] for row in watch.rows]
    assert rates == [close(0.2)] * 3
    assert run.w == close(-0.6)
    require_run(toy, folder, [1, 2, 3])


# ---------------------------------------------------------------- 15, 18, 21: slots, and no phantom step

RULES = {
    "sgd": {"momentum": 0.9},
    "nesterov": {"rule": "sgd", "momentum": 0.9, "nesterov": True},
    "adam": {"rule": "adam", "weight_decay": 0.1},
    "adamw": {"rule": "adamw", "weight_decay": 0.1},
    "lamb": {"rule": "lamb", "weight_decay": 0.1},
}


@pytest.mark.parametrize("name", RULES)
def test_case_15_slots_of_canonical_optimizers_come_back_on_all_ranks(toy, folder, name):
    require_round_trip(toy, folder, **RULES[name])


def test_case_18_first_step_of_adam_moves_by_the_rate(toy, folder):
    assert toy.fit([1.0], global_batch_size=1, rule="adam").w == close(-0.1)
    # A state that was loaded before the first step is no step either.
    toy.fit([1.0], global_batch_size=1, rule="adam", max_steps=0, run_dir=folder)
    run = toy.fit([1.0], global_batch_size=1, rule="adam", max_steps=1, run_dir=folder, resume=RESUME)
    assert run.w == close(-0.1)
    assert float(run.slots["w/step"]) == 1.0


def test_case_21_weights_that_the_root_loads_are_on_all_ranks_without_a_phantom_step(toy, folder):
    settings = {"momentum": 0.9, "weight_decay": 0.5, "global_batch_size": 2, "run_dir": folder}
    toy.fit([0.0] * 4, model=lambda: toy.toy.Toy(1.0), max_steps=0, **settings)
    begin = AtBegin()
    born = lambda: toy.toy.Toy(5.0 + toy.rank)  # noqa: E731 - as users write it
    run = toy.fit([0.0] * 4, model=born, max_steps=1, resume=RESUME, callbacks=[begin], **settings)
    assert toy.communicator.all_gather(float(begin.weights["w"])) == [1.0] * toy.size
    # The gradient is 0, so the first step is one of decay alone.
    assert run.w == close(0.95)


def test_case_16_frozen_integer_and_bool_tensors_come_back_unchanged(toy, folder):
    fixed = {
        "frozen": np.array([1.5, -2.5], np.float32),
        "count": np.array([2**53 + 1]),
        "mask": np.array([True, False]),
    }
    settings = {"global_batch_size": 2, "momentum": 0.9, "weight_decay": 0.5, "run_dir": folder}
    toy.fit(SAMPLES, model=lambda: toy.toy.Toy(fixed=fixed), max_steps=3, **settings)
    # The model of a resumed run is born with other values, and another on each rank.
    others = {"frozen": np.zeros(2, np.float32), "count": np.array([toy.rank]), "mask": np.array([False, False])}
    run = toy.fit(SAMPLES, model=lambda: toy.toy.Toy(fixed=others), resume=RESUME, **settings)
    for name, values in fixed.items():
        np.testing.assert_array_equal(run.weights[name], values, err_msg=name)
    assert run.w == close(weight_of_one_process(SAMPLES, 2, momentum=0.9, weight_decay=0.5))
    require_run(toy, folder, [3, 6])


# ---------------------------------------------------------------- 8, 39: decisions and order go on


def test_case_8_patience_of_a_continued_run_ends_both_ranks_at_the_same_epoch(toy, folder):
    # w is 1, 2, 3. Rank 0 holds 4 - w, which falls; rank 1 holds 3 w, which rises; their mean rises.
    settings = {
        "loss": lambda model, batch: batch["a"] + model(batch["x"]),
        "global_batch_size": 1,
        "epochs": 9,
        "early_stop_patience": 1,
        "run_dir": folder,
    }
    data = [{"x": np.float32(-10), "a": np.float32(0)}]
    held_out = [{"x": np.float32(x), "a": np.float32(a)} for x, a in ((-1, 4), (3, 0))]
    toy.fit(data, eval_samples=held_out, max_steps=1, **settings)
    run = toy.fit(data, eval_samples=held_out, resume=RESUME, **settings)
    assert toy.communicator.all_gather(run.summary["epoch"]) == [2] * toy.size
    assert run.w == close(2.0)


def _visit(toy, **arguments):
    """Fit on ids and return the run, and those that all ranks trained on per epoch."""
    seen, epochs = [], []

    def note(sample, rng):
        seen.append(int(sample["x"]))
        return sample

    def cut(epoch):
        epochs.append(list(seen))
        seen.clear()

    run = toy.fit(range(12), shuffle=True, seed=7, augment=note, callbacks=[AtEnd(cut)], **arguments)
    by_epoch = zip(*toy.communicator.all_gather(epochs), strict=True)
    return run, [[row for part in parts for row in part] for parts in by_epoch]


@pytest.mark.parametrize(("batch", "stop"), [({"global_batch_size": 1}, 18), ({"global_batch_size": 2}, 9)])
def test_case_39_run_stopped_within_an_epoch_uses_each_id_of_it_once(toy, folder, batch, stop):
    settings = {**batch, "batch_size": 1, "epochs": 3, "momentum": 0.5}
    whole, (_, second, third) = _visit(toy, **settings)
    _, (_, begun) = _visit(toy, run_dir=folder, max_steps=stop, **settings)
    run, (rest, last) = _visit(toy, run_dir=folder, resume=RESUME, **settings)
    assert (len(begun), len(rest)) == (6, 6)
    assert sorted(begun + rest) == sorted(second) == list(range(12))
    assert last == third
    assert bits(run) == bits(whole)
    expected = weight_of_one_process(range(12), batch["global_batch_size"], epochs=3, seed=7, momentum=0.5)
    assert run.w == pytest.approx(expected, rel=1e-5)
    require_run(toy, folder, [stop, 2 * stop])


# ---------------------------------------------------------------- 31, 32: not finite
INF = float("inf")
#: The second of two ranks gets the last samples of each global batch; the second update holds the infinite one.
SPOILT = {2: [1.0, 2.0, 1.0, INF, 3.0, 4.0], 4: [1.0, 2.0, 1.0, 2.0, 1.0, 1.0, 1.0, INF, 3.0, 4.0, 3.0, 4.0]}


@pytest.mark.parametrize("batch", [2, 4])
@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_case_31_step_that_one_rank_spoils_is_skipped_as_if_its_batch_were_absent(toy, folder, batch, rule):
    settings = {"rule": rule, **({"momentum": 0.9} if rule == "sgd" else {})}
    cut = {"global_batch_size": batch, "batch_size": 1, "epochs": 2}
    run = toy.fit(SPOILT[batch], on_nonfinite="skip", run_dir=folder, save_every_steps=1, **cut, **settings)
    absent = toy.fit(SPOILT[batch][:batch] + SPOILT[batch][-batch:], **cut, **settings)
    assert bits(run) == bits(absent)
    assert run.w == close(weight_of_one_process(SPOILT[batch], batch, epochs=2, **settings))
    assert (run.summary["global_step"], run.summary["samples_seen"]) == (6, 6 * batch)
    require_run(toy, folder, range(1, 7))


@pytest.mark.parametrize("batch", [2, 4])
def test_case_31_step_that_one_rank_spoils_ends_all_naming_rank_and_step(toy, folder, batch):
    trainer = toy.trainer(global_batch_size=batch, batch_size=1, run_dir=folder, save_every_steps=1)
    with pytest.raises(NonFiniteError) as caught:
        trainer.fit([{"x": np.float32(x)} for x in SPOILT[batch]])
    assert str(caught.value).startswith("step 2: loss and gradient must be finite, got loss sum ")
    assert f" It comes from rank {toy.size - 1} (samples {2 * batch - 1}). Mend " in str(caught.value)
    assert (caught.value.exit_code, caught.value.is_agreed) == (4, True)
    require_run(toy, folder, [1])
    if toy.rank == 0:
        saved = load(folder / "checkpoints" / "step-00000001").state.weights["w"]
        assert float(saved) == close(weight_of_one_process(SPOILT[batch][:batch], batch))


def test_case_32_accumulated_steps_after_an_infinite_micro_batch_are_finite(toy):
    watch = Steps()
    samples = [1.0, INF, 1.0, 1.0] + [1.0] * 8
    run = toy.fit(samples, global_batch_size=4, batch_size=1, on_nonfinite="skip", momentum=0.5, callbacks=[watch])
    assert watch.ws == [close(0.0), close(-0.1), close(-0.25)]
    assert float(run.slots["w/momentum_buffer"]) == close(1.5)


# ---------------------------------------------------------------- 38: damaged checkpoints


def _halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "manifest.json"])
def test_case_38_newest_file_cut_to_half_is_passed_over_with_one_warning(toy, folder, caplog, name):
    settings = {"global_batch_size": 2, "momentum": 0.9, "run_dir": folder, "save_every_steps": 1}
    whole = toy.fit(SAMPLES, **{**settings, "run_dir": None})
    toy.fit(SAMPLES, max_steps=4, **settings)
    if toy.rank == 0:
        _halve(folder / "checkpoints" / "step-00000004" / name)
    begin = AtBegin()
    run = toy.fit(SAMPLES, resume=RESUME, callbacks=[begin], **settings)
    told = "resume: damaged and passed over: step-00000004; continuing from step-00000003"
    assert toy.communicator.all_gather(logged(caplog, "WARNING")) == [[told], *[[]] * (toy.size - 1)]
    assert toy.communicator.all_gather(begin.step) == [3] * toy.size
    assert bits(run) == bits(whole)
    require_run(toy, folder, range(1, 7))


def test_case_38_no_valid_checkpoint_is_an_error_and_never_a_fresh_start(toy, folder):
    toy.fit(SAMPLES, max_steps=2, global_batch_size=2, run_dir=folder, save_every_steps=1)
    for path in list_checkpoints(folder / "checkpoints"):
        _halve(path / "model.safetensors")
    rows = (folder / "metrics.jsonl").read_bytes() if toy.rank == 0 else b""
    with pytest.raises(CheckpointError, match=r"no checkpoint of .* verifies") as caught:
        toy.fit(SAMPLES, global_batch_size=2, run_dir=folder, resume=RESUME)
    assert (caught.value.exit_code, caught.value.is_agreed) == (2, True)
    if toy.rank == 0:
        assert (folder / "metrics.jsonl").read_bytes() == rows


# ---------------------------------------------------------------- 37: loader workers


def test_case_37_runs_in_a_row_with_loader_workers_leave_none(toy):
    before = _threads()
    for _ in range(8):
        run = toy.fit([1.0, 2.0, 3.0, 4.0], global_batch_size=2, data_workers=2)
        assert run.w == close(-0.5)
    assert_on_all_ranks(toy.communicator, _threads() <= before, f"left threads: {_threads() - before}")


def _threads():
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("hvdtrain")}
