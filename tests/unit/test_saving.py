"""When checkpoints are written, which of them stay, and what a disk that refuses leads to."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import numpy as np
import pytest

from hvdtrain import checkpoint
from hvdtrain.config import TrainConfig
from hvdtrain.errors import CheckpointError
from hvdtrain.portable import PortableState
from hvdtrain.recorder import Counters
from hvdtrain.saving import Saver
from tests.unit.numpy_trainer import AtStep, Linear, Samples, Watcher, make_samples, trainer_of
from tests.unit.resuming import RESUME, Killed, kill_at, resumed

STATE = PortableState({"w": np.array([1.0, 2.0])}, {"w/m": np.array([3.0])}, {"v": "w"})


def saver_of(folder=None, **settings):
    return Saver(folder, TrainConfig(**settings))


def save_all(saver, steps, losses=None):
    for index, step in enumerate(steps):
        row = None if losses is None else {"loss": losses[index], "accuracy": losses[index]}
        saver.save(STATE, {"eval_row": row}, step)
    saver.wait()


def steps_in(folder):
    return [int(path.name.removeprefix("step-")) for path in checkpoint.list_checkpoints(Path(folder))]


# ---------------------------------------------------------------- when
@pytest.mark.parametrize(
    ("every", "is_voted", "due"),
    [(None, False, []), (None, True, [0, 1, 2, 3, 4]), (2, False, [0, 2, 4]), (3, False, [0, 3])],
)
def test_due_after_steps(every, is_voted, due):
    saver = saver_of(save_every_steps=every)
    found = [n for n in range(5) if saver.is_due_after_step(Counters(1, n, n, n), is_voted=is_voted)]
    assert found == due


@pytest.mark.parametrize(
    ("every", "epoch", "step_in_epoch", "is_due"),
    [(None, 2, 0, False), (1, 1, 0, True), (1, 1, 2, False), (2, 3, 0, False), (2, 4, 0, True)],
)
def test_due_after_complete_epochs(every, epoch, step_in_epoch, is_due):
    counters = Counters(epoch, step_in_epoch, 9, 36)
    assert saver_of(save_every_epochs=every).is_due_after_epoch(counters) is is_due


@pytest.mark.parametrize(
    ("folder", "minutes", "wants"), [("x", 1e-9, True), ("x", 60, False), ("x", None, False), (None, 1e-9, False)]
)
def test_clock_of_the_root_alone_wants_a_checkpoint(folder, minutes, wants):
    saver = saver_of(folder and Path(folder), save_every_minutes=minutes)
    assert saver.wants_by_clock() is wants


def test_clock_starts_anew_with_each_checkpoint(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("hvdtrain.saving.time.monotonic", lambda: now[0])
    saver = saver_of(tmp_path, save_every_minutes=2)
    found = []
    for seconds in (119.0, 1.0, 119.0, 1.0):
        now[0] += seconds
        found.append(saver.wants_by_clock())
        if found[-1]:
            saver.save(STATE, {}, len(found))
    saver.wait()
    assert found == [False, True, False, True]


def test_has_saved_is_of_this_very_step_and_its_evaluation(tmp_path):
    saver = saver_of(tmp_path)
    assert not saver.has_saved(3, None)
    saver.save(STATE, {"eval_row": None}, 3)
    assert saver.has_saved(3, None)
    assert not saver.has_saved(4, None)
    assert not saver.has_saved(3, {"global_step": 3})  # a signal had cut the evaluation short; now it was made
    saver.save(STATE, {"eval_row": {"global_step": 3}}, 3)
    assert saver.has_saved(3, {"global_step": 3})
    saver.wait()


def test_saver_without_a_folder_writes_nothing_and_remembers_the_step(tmp_path):
    saver = saver_of()
    saver.save(STATE, {}, 3)
    assert saver.has_saved(3, None)
    assert list(tmp_path.iterdir()) == []


def test_a_continued_run_has_the_checkpoint_that_it_continues_from(tmp_path):
    saver = saver_of(tmp_path)
    saver.begin_at(3, {"global_step": 2})
    assert saver.has_saved(3, {"global_step": 2})
    assert not saver.has_saved(3, {"global_step": 3})


# ---------------------------------------------------------------- what
def test_save_holds_state_and_manifest_as_they_were(tmp_path):
    state = PortableState({"w": np.array([1.0, 2.0])}, {"w/m": np.array([3.0])}, {"v": "w"})
    manifest = {"n": 1, "deep": {"list": []}}
    saver = saver_of(tmp_path)
    saver.save(state, manifest, 5)
    state.weights["w"][:] = 9.0
    state.slots["w/m"][:] = 9.0
    manifest["n"] = 9
    manifest["deep"]["list"].append(9)
    saver.wait()
    found = checkpoint.load(tmp_path / "step-00000005")
    assert found.state.weights["w"].tolist() == [1.0, 2.0]
    assert found.state.slots["w/m"].tolist() == [3.0]
    assert (found.state.aliases, found.manifest["n"]) == ({"v": "w"}, 1)
    assert found.manifest["deep"] == {"list": []}


def staged(saver):
    return {name: array.ctypes.data for name, array in saver._staged.weights.items()}


def test_memory_of_the_copy_is_used_again(tmp_path):
    saver, state = saver_of(tmp_path), PortableState({"w": np.zeros(1000), "b": np.zeros(3)})
    places = []
    for step in (1, 2):
        saver.save(state, {}, step)
        saver.wait()
        places.append(staged(saver))
    assert places[0] == places[1]


def test_copy_follows_names_shapes_and_dtypes(tmp_path):
    saver = saver_of(tmp_path)
    states = [
        {"w": np.arange(4.0), "gone": np.ones(2)},
        {"w": np.arange(6.0).reshape(3, 2).T, "new": np.array(True)},
        {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "new": np.array(False)},
    ]
    for step, weights in enumerate(states):
        saver.save(PortableState(weights), {}, step)
        saver.wait()
        found = checkpoint.load(tmp_path / f"step-0000000{step}").state.weights
        assert {name: (a.dtype, a.tolist()) for name, a in found.items()} == {
            name: (a.dtype, a.tolist()) for name, a in weights.items()
        }
        assert sorted(staged(saver)) == sorted(weights)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, []),
        ({"save_every_steps": 5}, ["w"]),
        ({"save_every_epochs": 1}, ["w"]),
        ({"save_every_minutes": 1}, ["w"]),
    ],
)
def test_memory_is_reserved_where_training_is_saved_on_the_way(tmp_path, settings, names):
    saver, state = saver_of(tmp_path, **settings), PortableState({"w": np.zeros(1000)})
    saver.reserve(state)
    saver.wait()
    assert sorted(staged(saver)) == names
    before = staged(saver)
    saver.save(state, {}, 1)
    saver.wait()
    assert not names or staged(saver) == before


def test_no_memory_is_reserved_without_a_folder():
    saver = saver_of(save_every_steps=1)
    saver.reserve(PortableState({"w": np.zeros(1000)}))
    saver.wait()
    assert staged(saver) == {}


def test_written_bytes_grow_with_every_checkpoint(tmp_path):
    saver, seen = saver_of(tmp_path), []
    assert saver.written_bytes == 0
    for step in (1, 2):
        saver.save(STATE, {}, step)
        saver.wait()
        seen.append(saver.written_bytes)
    path = tmp_path / "step-00000001"
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    assert seen == [size, 2 * size]


def test_wait_leaves_no_thread(tmp_path):
    saver = saver_of(tmp_path)
    before = threading.active_count()
    save_all(saver, [1])
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("settings", "losses", "kept"),
    [
        ({}, None, [1, 2, 3, 4, 5]),
        ({"keep_last": 2}, None, [4, 5]),
        ({"keep_last": 1}, None, [5]),
        ({"keep_last": 9}, None, [1, 2, 3, 4, 5]),
        ({"keep_last": 1, "keep_best": "loss"}, [3.0, 1.0, 2.0, 4.0, 5.0], [2, 5]),
        ({"keep_last": 2, "keep_best": "loss"}, [3.0, 1.0, 2.0, 4.0, 0.5], [4, 5]),
        ({"keep_last": 1, "keep_best": "accuracy"}, [0.3, 0.1, 0.9, 0.4, 0.5], [3, 5]),
        ({"keep_last": 1, "keep_best": "loss"}, [1.0, 1.0, 2.0, 2.0, 2.0], [1, 5]),
        ({"keep_best": "loss"}, [3.0, 1.0, 2.0, 4.0, 5.0], [1, 2, 3, 4, 5]),
        ({"keep_last": 1, "keep_best": "loss"}, [None, 2.0, 3.0, None, None], [2, 5]),
        ({"keep_last": 1, "keep_best": "loss"}, [float("nan"), 2.0, 3.0, 4.0, float("nan")], [2, 5]),
        ({"keep_last": 1, "keep_best": "accuracy"}, ["x", 0.5, float("nan"), 0.4, 0.3], [2, 5]),
    ],
)
def test_keep_last_and_keep_best(tmp_path, settings, losses, kept):
    save_all(saver_of(tmp_path, **settings), [1, 2, 3, 4, 5], losses)
    assert steps_in(tmp_path) == kept


def test_keep_best_takes_a_damaged_checkpoint_for_the_worst(tmp_path):
    save_all(saver_of(tmp_path), [1, 2], [0.5, 2.0])
    (tmp_path / "step-00000001" / "manifest.json").write_text("{")
    save_all(saver_of(tmp_path, keep_last=1, keep_best="loss"), [3], [3.0])
    assert steps_in(tmp_path) == [2, 3]


# ---------------------------------------------------------------- a disk that refuses
def test_failed_write_is_raised_by_the_next_save_once(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.write_text("a file")
    saver = saver_of(folder)
    saver.save(STATE, {}, 1)
    with pytest.raises(CheckpointError) as caught:
        saver.save(STATE, {}, 2)
    assert str(caught.value) == (
        f"commit: a checkpoint must be written whole, got FileExistsError: [Errno 17] File exists: '{folder}' "
        f"at {folder}/step-00000001. Earlier checkpoints are intact; make room or choose another --run-dir."
    )
    saver.wait()


@pytest.mark.parametrize(
    ("state", "manifest", "kind"),
    [(PortableState({"w": np.array(["x"], dtype=object)}), {}, CheckpointError), (STATE, {"x": object()}, TypeError)],
)
def test_write_that_fails_in_any_way_is_raised_and_does_not_count(tmp_path, state, manifest, kind):
    saver = saver_of(tmp_path)
    saver.save(state, manifest, 1)
    with pytest.raises(kind):
        saver.wait()
    assert (saver.take_committed(), list(tmp_path.iterdir())) == ([], [])


def block(step):
    """Put a file where the folder of an unfinished checkpoint would be made."""
    return lambda trainer: Path(f"run/checkpoints/step-{step:08d}.tmp-{os.getpid()}").write_text("")


@pytest.mark.parametrize(("step", "last"), [(3, 4), (9, 9)])
@pytest.mark.usefixtures("after_fit")
def test_run_whose_checkpoint_cannot_be_written_ends_at_the_next_one(step, last):
    watcher = Watcher()
    settings = {"run_dir": "run", "epochs": 3, "save_every_steps": 1}
    with pytest.raises(CheckpointError, match=r"^commit: a checkpoint must be written whole, got FileExistsError"):
        trainer_of([AtStep(block(step), step), watcher], **settings).fit(make_samples(10))
    steps = [text for text in watcher.seen if text.startswith("on_step_end")]
    assert steps[-1].endswith(f".{last}")
    assert steps_in("run/checkpoints") == list(range(1, step))
    for path in checkpoint.list_checkpoints(Path("run/checkpoints")):
        checkpoint.load(path)
    Path(f"run/checkpoints/step-{step:08d}.tmp-{os.getpid()}").unlink(missing_ok=True)
    assert resumed(**settings).fit(make_samples(10))["global_step"] == 9


@pytest.mark.usefixtures("after_fit")
def test_run_on_a_full_disk_ends_and_leaves_the_older_checkpoints_whole():
    # A limit on the size of a file stands for a disk without room: weights of 80 kB do not fit any longer.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    data = Samples(np.ones((10, 10_000)), np.ones(10))

    def fill_disk(trainer):
        trainer._saver.finish()  # the checkpoint of step 2 is written beside step 3
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))

    fill = AtStep(fill_disk, 3)
    settings = {"run_dir": "run", "epochs": 2, "save_every_steps": 1, "learning_rate": 1e-6}
    try:
        with pytest.raises(CheckpointError, match=r"^commit: a checkpoint must be written whole, got .* at run/"):
            trainer_of([fill], model=Linear(np.zeros(10_000)), **settings).fit(data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert steps_in("run/checkpoints") == [1, 2]
    assert not list(Path("run/checkpoints").glob("*.tmp-*"))
    assert resumed(model=Linear(np.zeros(10_000)), **settings).fit(data)["global_step"] == 6


# ---------------------------------------------------------------- in a run
@pytest.mark.usefixtures("after_fit")
@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, [6]),
        ({"save_every_steps": 2}, [2, 4, 6]),
        ({"save_every_steps": 4}, [4, 6]),
        ({"save_every_epochs": 1}, [3, 6]),
        ({"save_every_steps": 3, "save_every_epochs": 1}, [3, 6]),
        ({"save_every_minutes": 1e-9}, [1, 2, 3, 4, 5, 6]),
        ({"save_every_minutes": 60}, [6]),
        ({"save_every_steps": 1, "keep_last": 2}, [5, 6]),
    ],
)
def test_run_saves_when_told_and_at_the_end(settings, steps):
    trainer_of(run_dir="run", epochs=2, **settings).fit(make_samples(10))
    assert steps_in("run/checkpoints") == steps


@pytest.mark.usefixtures("after_fit")
def test_on_checkpoint_tells_of_each_committed_checkpoint_once_in_order():
    watcher, whole = Watcher(), []
    watcher.on_checkpoint = lambda trainer, path: whole.append(checkpoint.load(path).path.name)
    trainer_of([watcher], run_dir="run", epochs=6, save_every_steps=1).fit(make_samples(10))
    assert whole == [f"step-{step:08d}" for step in range(1, 19)]


@pytest.mark.usefixtures("after_fit")
def test_run_that_keeps_one_checkpoint_keeps_a_whole_one_after_damaged_ones():
    settings = {"run_dir": "run", "epochs": 3, "save_every_steps": 1}
    kill_at(9, make_samples(10), **settings)
    for step in (6, 7, 8):
        Path(f"run/checkpoints/step-{step:08d}/model.safetensors").write_bytes(b"")
    kill_at(7, make_samples(10), resume=RESUME, keep_last=1, **settings)
    found = checkpoint.list_checkpoints(Path("run/checkpoints"))
    assert [path.name for path in found] == ["step-00000006"]
    checkpoint.load(found[0])


@pytest.mark.usefixtures("after_fit")
def test_run_that_raises_leaves_no_thread_that_writes():
    def fail(trainer):
        raise Killed

    callback = AtStep(fail, 2)
    with pytest.raises(Killed):
        trainer_of([callback], run_dir="run", save_every_steps=1).fit(make_samples(10))
    assert [thread.name for thread in threading.enumerate() if thread.name == "hvdtrain-save"] == []
