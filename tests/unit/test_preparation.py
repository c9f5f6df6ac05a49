"""What happens before the first step: every refusal comes early, and files are touched late."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import numpy as np
import pytest

from hvdtrain import checkpoint
from hvdtrain.callbacks import Callback
from hvdtrain.config import TrainConfig
from hvdtrain.errors import CheckpointError, ConfigError, DataError
from hvdtrain.resume import ResumeRequest
from tests.unit.numpy_trainer import AtStep, Linear, NumpyTrainer, make_samples, squared_error, trainer_of, weights_of
from tests.unit.resuming import RESUME, Killed, kill, kill_at, resumed

pytestmark = pytest.mark.usefixtures("after_fit")


# ---------------------------------------------------------------- the constructor
def test_constructor_stores_and_does_nothing(tmp_path):
    callback, augment, collate = Callback(), print, repr
    trainer = NumpyTrainer(
        Linear,
        loss=squared_error,
        config=TrainConfig(),
        run_dir="run",
        callbacks=[callback],
        augment=augment,
        collate=collate,
        names={"a": "b"},
        init_from="x",
        trace_every_steps=5,
        job_digest="d",
    )
    assert (trainer.model, trainer.loss, trainer.config) == (Linear, squared_error, TrainConfig())
    assert (trainer.run_dir, trainer.init_from, trainer.names) == (Path("run"), Path("x"), {"a": "b"})
    assert (trainer.user_callbacks, trainer.augment, trainer.collate) == ((callback,), augment, collate)
    assert (trainer.trace_every_steps, trainer.job_digest, trainer.resume) == (5, "d", ResumeRequest())
    assert list(tmp_path.iterdir()) == []
    assert not hasattr(trainer, "communicator")


def test_trainer_starts_fresh_unless_told():
    trainer_of(run_dir="first").fit(make_samples(10))
    assert trainer_of(run_dir="second").fit(make_samples(10))["global_step"] == 3


# ---------------------------------------------------------------- the order of things
def test_fresh_run_prepares_shares_and_only_then_begins():
    trainer = trainer_of(max_steps=1)
    trainer.fit(make_samples(4))
    assert trainer.calls[:5] == ["start", "prepare", "broadcast_state", "export_state", "train_step"]
    assert trainer.calls[-1] == "stop"


def test_continued_run_imports_on_the_root_before_it_shares():
    trainer_of(run_dir="run", max_steps=1).fit(make_samples(10))
    trainer = resumed(run_dir="run")
    trainer.fit(make_samples(10))
    assert trainer.calls[:5] == ["start", "prepare", "import_state", "broadcast_state", "export_state"]


def test_continued_run_begins_with_counters_rates_and_weights_of_the_checkpoint():
    seen = []

    def look(trainer):
        seen.append((vars(trainer.counters).copy(), weights_of(trainer)))

    first = trainer_of(run_dir="run", max_steps=4, epochs=2)
    first.fit(make_samples(10))
    trainer = resumed([AtStep(look, 4, "on_fit_begin")], run_dir="run", epochs=2)
    trainer.fit(make_samples(10))
    counters = {"epoch": 2, "step_in_epoch": 1, "global_step": 4, "samples_seen": 14}
    assert seen == [(counters, weights_of(first))]


def test_config_of_a_continued_run_replaces_the_one_before():
    trainer_of(run_dir="run", max_steps=4, epochs=2).fit(make_samples(10))
    resumed(run_dir="run", epochs=2, batch_size=2).fit(make_samples(10))
    config = json.loads(Path("run/config.json").read_text())
    assert (config["max_steps"], config["batch_size"]) == (None, 2)


def test_summary_of_the_run_before_is_gone_while_the_run_goes_on():
    trainer_of(run_dir="run", max_steps=2).fit(make_samples(10))
    assert Path("run/summary.json").exists()
    with pytest.raises(Killed):
        resumed([AtStep(kill, 3)], run_dir="run").fit(make_samples(10))
    assert not Path("run/summary.json").exists()


# ---------------------------------------------------------------- refusals
def files_of(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("settings", "data", "eval_data", "kind"),
    [
        ({"early_stop_patience": 2}, make_samples(10), None, ConfigError),
        ({}, make_samples(0), None, DataError),
        ({}, iter([1]), None, DataError),
        ({"learning_rate": 0.5}, make_samples(10), None, CheckpointError),
        ({}, make_samples(11), None, CheckpointError),
    ],
)
def test_refused_run_leaves_the_folder_as_it_was(settings, data, eval_data, kind):
    kill_at(2, make_samples(10), run_dir="run", save_every_steps=1)
    before = files_of("run")
    with pytest.raises(kind) as caught:
        resumed(run_dir="run", **settings).fit(data, eval_data)
    assert caught.value.is_agreed
    assert files_of("run") == before


def test_checkpoint_of_another_model_is_refused_and_the_folder_left_alone():
    kill_at(2, make_samples(10), run_dir="run", save_every_steps=1)
    before = files_of("run")
    with pytest.raises(CheckpointError) as caught:
        resumed(run_dir="run", model=Linear(np.zeros(3))).fit(WithThree())
    assert str(caught.value).startswith("import_state: ")
    assert files_of("run") == before


class WithThree:
    """Ten samples of three numbers each."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return {"x": np.full(3, index), "y": np.float32(index)}


def test_run_in_use_is_not_continued():
    kill_at(2, make_samples(10), run_dir="run", save_every_steps=1)

    def start_second(trainer):
        with pytest.raises(ConfigError) as caught:
            resumed(run_dir="run").fit(make_samples(10))
        assert str(caught.value) == (
            "run folder: run is in use by another run. Wait for it, or choose another --run-dir."
        )

    assert resumed([AtStep(start_second, 2)], run_dir="run").fit(make_samples(10))["global_step"] == 3


# ---------------------------------------------------------------- where a run starts from
def test_init_from_takes_weights_alone_and_begins_at_step_0():
    trainer_of(run_dir="first", optimizer="adam").fit(make_samples(10))
    seen = []
    trainer = trainer_of(
        [AtStep(lambda trainer: seen.append(trainer.export_state()), 0, "on_fit_begin")],
        run_dir="second",
        optimizer="adam",
        max_steps=0,
    )
    trainer.init_from = Path("first/checkpoints/step-00000003")
    assert trainer.fit(make_samples(10))["global_step"] == 0
    saved = checkpoint.load(trainer.init_from).state
    assert seen[0].weights["weight"].tolist() == saved.weights["weight"].tolist() != [0.0, 0.0]
    assert {name: array.any() for name, array in seen[0].slots.items()} == dict.fromkeys(saved.slots, False)


def test_resume_stands_above_init_from():
    trainer_of(run_dir="first", epochs=2).fit(make_samples(10))
    trainer_of(run_dir="run", max_steps=2).fit(make_samples(10))
    seen = []
    trainer = resumed([AtStep(lambda trainer: seen.extend(weights_of(trainer)), 2, "on_fit_begin")], run_dir="run")
    trainer.init_from = Path("first/checkpoints/step-00000006")
    trainer.fit(make_samples(10))
    saved = checkpoint.load(Path("run/checkpoints/step-00000002")).state.weights
    assert seen == [*saved["weight"], *saved["bias"]]


def test_resume_of_a_folder_without_checkpoints_starts_from_init_from():
    trainer_of(run_dir="first").fit(make_samples(10))
    trainer = resumed(run_dir="run", max_steps=0, request=RESUME)
    trainer.init_from = Path("first/checkpoints/step-00000003")
    trainer.fit(make_samples(10))
    first, second = (checkpoint.find_latest(Path(name) / "checkpoints").state for name in ("first", "run"))
    assert first.weights["weight"].tolist() == second.weights["weight"].tolist() != [0.0, 0.0]


def test_init_from_a_run_takes_its_newest_checkpoint_and_says_which(caplog):
    trainer_of(run_dir="first", epochs=2, save_every_epochs=1).fit(make_samples(10))
    trainer = trainer_of(run_dir="second", max_steps=0)
    trainer.init_from = Path("first")
    with caplog.at_level(logging.INFO, "hvdtrain.checkpoint"):
        trainer.fit(make_samples(10))
    first, second = (checkpoint.find_latest(Path(name) / "checkpoints").state for name in ("first", "second"))
    assert second.weights["weight"].tolist() == first.weights["weight"].tolist() != [0.0, 0.0]
    told = [record.getMessage() for record in caplog.records if record.name == "hvdtrain.checkpoint"]
    assert told == ["checkpoint: of first the newest is taken, step-00000006"]


def test_resume_from_a_run_takes_its_newest_checkpoint():
    trainer_of(run_dir="first", max_steps=4, epochs=2, save_every_steps=1).fit(make_samples(10))
    summary = resumed(run_dir="second", epochs=2, request=ResumeRequest(path=Path("first"))).fit(make_samples(10))
    assert (summary["global_step"], summary["session"]["steps"]) == (6, 2)


def test_run_remembers_the_weights_that_it_began_from():
    kill_at(4, make_samples(10), run_dir="run", epochs=2, save_every_steps=2)
    resumed(run_dir="run", epochs=2, save_every_steps=2).fit(make_samples(10))
    trainer_of(run_dir="other", model=Linear(np.array([1.0, 2.0]))).fit(make_samples(10))
    paths = [*sorted(Path("run/checkpoints").iterdir()), Path("other/checkpoints/step-00000003")]
    began = [checkpoint.read_manifest(path)["began_from"] for path in paths]
    assert (len(began) > 2, len(set(began[:-1])), len(set(began))) == (True, 1, 2)


def test_time_of_the_rows_goes_on_over_sessions():
    data = make_samples(10)
    kill_at(4, data, run_dir="run", epochs=2, save_every_steps=2)
    nap = AtStep(lambda trainer: time.sleep(0.05), 5)
    summary = resumed([nap], run_dir="run", epochs=2, save_every_steps=2).fit(data)
    times = [json.loads(line)["time_s"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert times == sorted(times)
    assert summary["time_s"] > summary["session"]["time_s"] > 0.05
    assert summary["session"]["steps"] < summary["global_step"] == 6
