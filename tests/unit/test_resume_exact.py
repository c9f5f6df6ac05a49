"""Whole runs: stopped or killed anywhere and continued, they end bit for bit where the undisturbed run ends."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hvdtrain.checkpoint import load
from tests.unit.numpy_trainer import AtStep, Samples, make_samples, trainer_of, weights_of
from tests.unit.resuming import (
    RESUME,
    kill_at,
    newest,
    noisy_samples,
    outcome,
    resumed,
    rows_without_clock,
    stream_of,
    tensors_of,
    without_clock,
)

pytestmark = pytest.mark.usefixtures("after_fit")

#: Ten samples in batches of four, three times: nine updates, three an epoch.
RUN = {"epochs": 3, "optimizer": "adam", "weight_decay": 0.01, "shuffle": True, "seed": 5, "save_every_steps": 1}
LAST = 9
ALL = {"once": 10, "more": 0, "never": 0}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A function of settings and data: what the run comes to when nothing happens; made once."""
    known = {}

    def make(name, train_data, eval_data=None, **settings):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            known[name] = outcome(folder, trainer_of(run_dir=folder, **settings).fit(train_data, eval_data))
        return known[name]

    return make


# ---------------------------------------------------------------- with a length
@pytest.mark.parametrize("step", range(LAST + 1))
def test_run_stopped_after_a_step_and_continued_is_the_undisturbed_run(undisturbed, step):
    expected = undisturbed("stopped", noisy_samples(10), **RUN)
    trainer_of(run_dir="run", max_steps=step, **RUN).fit(noisy_samples(10))
    assert newest("run").name == f"step-{step:08d}"
    found = outcome("run", resumed(run_dir="run", **RUN).fit(noisy_samples(10)))
    assert found == expected
    assert found["summary"]["ledger"]["train"] == ALL


EVALUATED = {**RUN, "log_every_steps": 2, "decay": "plateau", "plateau_patience": 0, "decay_factor": 0.5}


@pytest.mark.parametrize("step", range(1, LAST + 1))
def test_run_killed_in_a_step_and_continued_is_the_undisturbed_run(undisturbed, step):
    data, eval_data = noisy_samples(10), noisy_samples(7, seed=1)
    expected = undisturbed("killed", data, eval_data, **EVALUATED)
    kill_at(step, data, eval_data, run_dir="run", **EVALUATED)
    found = outcome("run", resumed(run_dir="run", **EVALUATED).fit(data, eval_data))
    assert found == expected
    assert found["summary"]["ledger"] == {"train": ALL, "eval": {"once": 7, "more": 0, "never": 0}}


@pytest.mark.parametrize("step", [3, 6, 9])
def test_run_killed_after_an_evaluation_and_continued_is_the_undisturbed_run(undisturbed, step):
    data, eval_data = noisy_samples(10), noisy_samples(7, seed=1)
    expected = undisturbed("killed", data, eval_data, **EVALUATED)
    kill_at(step, data, eval_data, hook="on_evaluate", run_dir="run", **EVALUATED)
    assert outcome("run", resumed(run_dir="run", **EVALUATED).fit(data, eval_data)) == expected


def test_run_killed_three_times_is_the_undisturbed_run(undisturbed):
    data, eval_data = noisy_samples(10), noisy_samples(7, seed=1)
    expected = undisturbed("killed", data, eval_data, **EVALUATED)
    for step in (2, 5, 8):
        kill_at(step, data, eval_data, run_dir="run", resume=RESUME, **EVALUATED)
    assert outcome("run", resumed(run_dir="run", **EVALUATED).fit(data, eval_data)) == expected


@pytest.mark.parametrize("step", range(1, LAST))
def test_run_asked_to_stop_and_continued_is_the_undisturbed_run(undisturbed, step):
    data, eval_data = noisy_samples(10), noisy_samples(7, seed=1)
    expected = undisturbed("killed", data, eval_data, **EVALUATED)
    stopper = AtStep(lambda trainer: trainer.request_stop(), step - 1, "on_step_end" if step > 1 else "on_fit_begin")
    summary = trainer_of([stopper], run_dir="run", **EVALUATED).fit(data, eval_data)
    assert summary["global_step"] == step
    found = outcome("run", resumed(run_dir="run", **EVALUATED).fit(data, eval_data))
    # The end that was asked for is evaluated as any end is; nothing is decided by it.
    if step % 3:
        extra = [row for row in found["rows"] if (row["event"], row["global_step"]) == ("eval", step)]
        assert len(extra) == 1
        found["rows"].remove(extra[0])
    assert found == expected


@pytest.mark.parametrize("step", [1, 3, 5])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_run_continued_with_another_batch_size_makes_the_same_updates(step, batch_size):
    data = noisy_samples(10)
    whole = trainer_of(**RUN)
    whole.fit(data)
    trainer_of(run_dir="run", max_steps=step, **RUN).fit(data)
    trainer = resumed(run_dir="run", batch_size=batch_size, **RUN)
    summary = trainer.fit(data)
    # Only the order of addition differs.
    assert weights_of(trainer) == pytest.approx(weights_of(whole), rel=1e-10)
    assert (summary["samples_seen"], summary["ledger"]["train"]) == (30, ALL)


def test_run_continued_without_its_global_batch_size_keeps_it():
    data = make_samples(10)
    trainer_of(run_dir="run", max_steps=1, **RUN).fit(data)
    trainer = resumed(run_dir="run", global_batch_size=None, batch_size=2, **RUN)
    assert trainer.fit(data)["global_step"] == LAST
    assert json.loads(Path("run/config.json").read_text())["global_batch_size"] == 4


def test_optimizer_that_skipped_a_step_counts_on_from_its_own_updates(undisturbed):
    data = noisy_samples(10)
    data.columns["x"][1] = np.nan  # in the first batch of each epoch
    settings = {**RUN, "shuffle": False, "on_nonfinite": "skip"}
    expected = undisturbed("skipped", data, **settings)
    kill_at(5, data, run_dir="run", **settings)
    assert outcome("run", resumed(run_dir="run", **settings).fit(data)) == expected


# ---------------------------------------------------------------- streams
STREAMED = {"epochs": 2, "optimizer": "adam", "save_every_steps": 1}


def used_by(trainer):
    """Return a list that will hold the targets of all batches after the probe."""
    used, make_batch = [], trainer.make_batch

    def noting(micro_batch):
        used.append([int(y) for y in micro_batch.data["y"]])
        return make_batch(micro_batch)

    trainer.make_batch = noting
    return used


def ids_from(num_samples):
    data = noisy_samples(num_samples)
    data.columns["y"] = np.arange(num_samples, dtype=np.float32)
    return data


@pytest.mark.parametrize("step", range(1, 9))
@pytest.mark.parametrize("batch", [3, 4])
def test_stream_stopped_and_continued_uses_every_sample_once(undisturbed, batch, step):
    settings = {**STREAMED, "global_batch_size": batch, "learning_rate": 0.001}
    expected = undisturbed(f"stream{batch}", stream_of(ids_from(11), 4), **settings)
    first = trainer_of(run_dir="run", max_steps=step, **settings)
    used = [used_by(first)]
    first.fit(stream_of(ids_from(11), 4))
    second = resumed(run_dir="run", **settings)
    used.append(used_by(second))
    summary = second.fit(stream_of(ids_from(11), 4))
    samples = [sample for batches in used for part in batches[1:] for sample in part]
    assert sorted(samples[:11]) == sorted(samples[11:]) == list(range(11))
    assert outcome("run", summary) == expected


def test_stream_continued_with_another_number_of_workers_uses_every_sample_once():
    data = ids_from(11)
    trainer_of(run_dir="run", max_steps=2, data_workers=3, **STREAMED).fit(stream_of(data, None))
    trainer = resumed(run_dir="run", data_workers=1, epochs=1, optimizer="adam", save_every_steps=1)
    used = used_by(trainer)
    trainer.fit(stream_of(data, None))
    rest = [sample for part in used[1:] for sample in part]
    # Shards 0 and 1 of 3 gave 3 samples each, shard 2 gave 2.
    assert sorted(rest) == sorted({*range(11)} - {0, 3, 6, 1, 4, 7, 2, 5})


def test_stream_with_steps_per_epoch_continued_within_an_epoch_goes_on_in_its_pass(undisturbed):
    settings = {**STREAMED, "epochs": 3, "steps_per_epoch": 2, "global_batch_size": 4}
    expected = undisturbed("steps", stream_of(noisy_samples(16), 4), **settings)
    for step in (1, 2, 3):
        kill_at(step + 1, stream_of(noisy_samples(16), 4), run_dir="run", resume=RESUME, **settings)
    assert outcome("run", resumed(run_dir="run", **settings).fit(stream_of(noisy_samples(16), 4))) == expected


# ---------------------------------------------------------------- patience
ZEROS = Samples(np.zeros((10, 2)), np.ones(10))
PATIENT = {"epochs": 9, "learning_rate": 0.0, "early_stop_patience": 3, "save_every_steps": 1}


@pytest.mark.parametrize("step", [1, 3, 4, 8, 10, 12])
def test_early_stopping_goes_on_counting(step):
    # The first evaluation is the best one, three more end the run: four epochs of three updates.
    kill_at(step, ZEROS, ZEROS, run_dir="run", **PATIENT)
    summary = resumed(run_dir="run", **PATIENT).fit(ZEROS, ZEROS)
    assert (summary["epoch"], summary["global_step"]) == (4, 12)
    patience = load(newest("run")).manifest["patience"]
    assert (patience["best"], patience["since_best"]) == (1.0, 3)


def test_run_that_was_stopped_early_goes_on_with_more_patience():
    trainer_of(run_dir="run", **PATIENT).fit(ZEROS, ZEROS)
    summary = resumed(run_dir="run", **{**PATIENT, "early_stop_patience": 5}).fit(ZEROS, ZEROS)
    assert (summary["epoch"], summary["global_step"]) == (6, 18)


@pytest.mark.parametrize("step", [1, 4, 6, 7, 9, 10, 12])
def test_plateau_goes_on_falling(step):
    settings = {"epochs": 4, "learning_rate": 0.0, "decay": "plateau", "plateau_patience": 0, "decay_factor": 0.5}
    settings |= {"save_every_steps": 1, "run_dir": "run"}
    kill_at(step, ZEROS, ZEROS, **settings)
    trainer = resumed(**settings)
    factors = []
    trainer.user_callbacks = (AtEveryStep(lambda: factors.append(trainer._patience.factor)),)
    trainer.fit(ZEROS, ZEROS)
    assert factors == ([1.0] * 6 + [0.5] * 3 + [0.25] * 3)[step - 1 :]


class AtEveryStep(AtStep):
    def act(self, trainer, *arguments):
        self.action()


# ---------------------------------------------------------------- a finished run
def files_of(folder):
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {path: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) for path in paths}


@pytest.mark.parametrize("eval_data", [None, make_samples(4)])
def test_finished_run_has_nothing_to_do_and_leaves_its_files_alone(caplog, eval_data):
    summary = trainer_of(run_dir="run", **RUN).fit(make_samples(10), eval_data)
    before = files_of("run")
    with caplog.at_level("INFO", "hvdtrain"):
        trainer = resumed(run_dir="run", **RUN)
        assert trainer.fit(make_samples(10), eval_data) == summary
    assert [record.getMessage() for record in caplog.records if record.name == "hvdtrain.preparation"] == []
    weights = {name: (a.dtype.str, a.tobytes()) for name, a in trainer.export_state().weights.items()}
    assert weights.items() <= tensors_of(newest("run")).items()  # a script may go on with the trained model
    assert "resume: nothing to do, the run ended at step 9" in caplog.messages
    assert files_of("run") == before
    assert "train_step" not in trainer.calls


def test_finished_run_continued_with_more_epochs_goes_on():
    data = noisy_samples(10)
    longer = {**RUN, "epochs": 5}
    trainer_of(run_dir="whole", **longer).fit(data)
    trainer_of(run_dir="run", **RUN).fit(data)
    resumed(run_dir="run", **longer).fit(data)
    assert tensors_of(newest("run")) == tensors_of(newest("whole"))
    assert rows_without_clock("run") == rows_without_clock("whole")


def test_run_killed_before_its_summary_writes_the_one_of_the_undisturbed_run(undisturbed):
    expected = undisturbed("stopped", noisy_samples(10), **RUN)
    trainer_of(run_dir="run", **RUN).fit(noisy_samples(10))
    Path("run/summary.json").unlink()
    summary = resumed(run_dir="run", **RUN).fit(noisy_samples(10))
    assert without_clock(summary) == expected["summary"]


def test_checkpoint_that_a_run_continues_from_is_not_written_again():
    trainer_of(run_dir="run", max_steps=3, save_every_epochs=1, epochs=2).fit(make_samples(10))
    path = newest("run")
    before = files_of(path)
    resumed(run_dir="run", save_every_epochs=1, epochs=2).fit(make_samples(10))
    assert files_of(path) == before
