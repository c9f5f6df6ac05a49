"""Which checkpoint a run continues from, and what keeps it from continuing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hvdtrain import checkpoint
from hvdtrain.checkpoint import commit
from hvdtrain.config import TrainConfig
from hvdtrain.errors import CheckpointError, ConfigError
from hvdtrain.plan import make_plan
from hvdtrain.portable import PortableState
from hvdtrain.resume import (
    Found,
    ResumeRequest,
    require_same_run,
    resume_request,
    settings_to_continue,
    warn_of_fewer_steps,
)
from tests.unit.made_runs import array
from tests.unit.numpy_trainer import make_samples, trainer_of
from tests.unit.resuming import RESUME, kill_at, newest, noisy_samples, resumed, rows_without_clock, stream_of

pytestmark = pytest.mark.usefixtures("after_fit")
SAVED = {"run_dir": "run", "epochs": 2, "save_every_steps": 1}
CHECKPOINTS = Path("run/checkpoints")
CURE = "Give the same settings and data; --allow-config-change lets settings differ, and the run is then another one."


def refusal(differing):
    return f"resume: a run must go on as it began, got other values of {differing}. {CURE}"


@pytest.fixture
def stopped():
    """A run that was stopped after its fourth step."""
    trainer_of(max_steps=4, **SAVED).fit(make_samples(10))


def refused(data, *, request=RESUME, **settings):
    """Return the message with which the run does not continue; nothing of its folder changes."""
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError) as caught:
        resumed(request=request, **{**SAVED, **settings}).fit(data)
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before
    assert (caught.value.exit_code, caught.value.is_agreed) == (2, True)
    return str(caught.value)


# ---------------------------------------------------------------- which checkpoint
def test_find_without_a_wish_starts_fresh(stopped):
    assert ResumeRequest().find(CHECKPOINTS) is None


def test_find_without_a_folder_starts_fresh():
    assert RESUME.find(None) is None


@pytest.mark.parametrize("is_made", [True, False])
def test_find_without_a_checkpoint_starts_fresh_and_says_so(caplog, is_made):
    if is_made:
        CHECKPOINTS.mkdir(parents=True)
    with caplog.at_level("INFO", "hvdtrain.resume"):
        assert RESUME.find(CHECKPOINTS) is None
    assert caplog.messages == ["resume: no checkpoint in run/checkpoints, starting fresh"]


def test_find_takes_the_newest(stopped, caplog):
    found = RESUME.find(CHECKPOINTS)
    assert (found.path.name, found.manifest["counters"]["global_step"]) == ("step-00000004", 4)
    assert caplog.messages == []


def test_find_passes_damaged_ones_over_with_one_warning(stopped, caplog):
    (CHECKPOINTS / "step-00000003" / "optimizer.safetensors").unlink()
    model = CHECKPOINTS / "step-00000004" / "model.safetensors"
    model.write_bytes(model.read_bytes()[: model.stat().st_size // 2])
    assert RESUME.find(CHECKPOINTS).path.name == "step-00000002"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "WARNING",
            "resume: damaged and passed over: step-00000003, step-00000004; continuing from step-00000002",
        )
    ]


def test_find_knows_which_is_newer_by_number(stopped, caplog):
    found = CHECKPOINTS / "step-00000004"
    found.rename(CHECKPOINTS / "step-99999999")
    (CHECKPOINTS / "step-100000000").mkdir()
    assert RESUME.find(CHECKPOINTS).path.name == "step-99999999"
    assert caplog.messages == ["resume: damaged and passed over: step-100000000; continuing from step-99999999"]


def test_find_with_all_damaged_raises(stopped):
    for path in CHECKPOINTS.iterdir():
        (path / "manifest.json").write_text("")
    told = [
        f"load: {CHECKPOINTS}/step-0000000{step}/manifest.json cannot be read: Expecting value: line 1 column 1 "
        "(char 0). Use an older checkpoint."
        for step in (4, 3, 2, 1)
    ]
    assert refused(make_samples(10)) == (f"find_latest: no checkpoint of {CHECKPOINTS} verifies. {' '.join(told)}")


def test_find_of_a_path_takes_it_and_not_the_newest(stopped):
    path = CHECKPOINTS / "step-00000002"
    assert ResumeRequest(path=path).find(CHECKPOINTS).path == path


def test_find_of_a_missing_path_raises_and_takes_no_other(stopped):
    path = CHECKPOINTS / "step-00000002"
    shutil.rmtree(path)
    with pytest.raises(CheckpointError, match=r"must exist, got run/checkpoints/step-00000002\. Check the path\.$"):
        ResumeRequest(path=path).find(CHECKPOINTS)


def test_find_of_weights_without_a_run_raises():
    path = checkpoint.commit(Path("made"), 3, PortableState({"w": array([1.0])}), {"counters": {"global_step": 3}})
    with pytest.raises(CheckpointError) as caught:
        ResumeRequest(path=path).find(None)
    assert str(caught.value) == (
        "resume: made/step-00000003 must hold where its run stood, got none of config, data, eval_row, ledgers, "
        "patience, plan, recorder. Start from its weights with --init-from."
    )


# ---------------------------------------------------------------- whole runs
def test_resume_from_a_path_goes_into_a_new_folder(stopped):
    trainer_of(**{**SAVED, "run_dir": "whole"}).fit(make_samples(10))
    request = ResumeRequest(path=CHECKPOINTS / "step-00000002")
    resumed(request=request, **{**SAVED, "run_dir": "other"}).fit(make_samples(10))
    assert [row["global_step"] for row in rows_without_clock("other")] == [3, 4, 5, 6]
    assert rows_without_clock("other") == rows_without_clock("whole")[2:]
    assert newest("run").name == "step-00000004"


def test_resume_without_a_checkpoint_is_a_fresh_run():
    summary = resumed(**SAVED).fit(make_samples(10))
    assert (summary["global_step"], len(rows_without_clock("run"))) == (6, 6)


def test_resume_takes_away_what_a_killed_save_left(stopped):
    for name in ("step-00000005.tmp-123", "step-00000009.tmp-old"):
        (CHECKPOINTS / name).mkdir()
    resumed(**SAVED).fit(make_samples(10))
    assert sorted(path.name for path in CHECKPOINTS.iterdir()) == [f"step-0000000{step}" for step in range(1, 7)]


@pytest.mark.parametrize(
    "torn", ['{"event": "train", "glo', "{", '{"event": "train", "epoch": 2, "global_step": 4, "samples_seen": 14}']
)
def test_torn_last_row_is_cut(torn):
    data = noisy_samples(10)
    trainer_of(**{**SAVED, "run_dir": "whole"}).fit(data)
    kill_at(5, data, **SAVED)
    with Path("run/metrics.jsonl").open("a") as stream:
        stream.write(torn)
    resumed(**SAVED).fit(data)
    assert rows_without_clock("run") == rows_without_clock("whole")


def test_manifest_is_json_for_any_reader():
    trainer_of(**SAVED).fit(make_samples(10), make_samples(4))

    def refuse(constant):
        raise ValueError(f"{constant} is no JSON")

    for path in CHECKPOINTS.iterdir():
        assert json.loads((path / "manifest.json").read_text(), parse_constant=refuse)["format"] == 1


# ---------------------------------------------------------------- refusals
def test_another_learning_rate_is_refused_with_both_values(stopped):
    assert refused(make_samples(10), learning_rate=0.1) == refusal("learning_rate (0.05 in the checkpoint, 0.1 now)")


def test_another_learning_rate_is_allowed_when_asked(stopped):
    trainer = resumed(request=ResumeRequest(True, None, True), **{**SAVED, "learning_rate": 0.1})
    assert trainer.fit(make_samples(10))["global_step"] == 6
    assert trainer.rates == [0.1, 0.1]


def test_all_that_differs_is_told_at_once(stopped):
    message = refused(make_samples(10), optimizer="adam", betas=(0.8, 0.9), global_batch_size=5)
    assert message == refusal(
        "global_batch_size (4 in the checkpoint, 5 now); optimizer ('sgd' in the checkpoint, 'adam' now); "
        "betas ([0.9, 0.999] in the checkpoint, [0.8, 0.9] now)"
    )


@pytest.mark.parametrize("request_", [RESUME, ResumeRequest(True, None, True)])
def test_another_global_batch_is_refused_whatever_is_allowed(stopped, request_):
    assert refused(make_samples(10), request=request_, global_batch_size=5) == refusal(
        "global_batch_size (4 in the checkpoint, 5 now)"
    )


@pytest.mark.parametrize("request_", [RESUME, ResumeRequest(True, None, True)])
def test_another_length_of_the_data_is_refused_whatever_is_allowed(stopped, request_):
    message = refused(make_samples(12), request=request_)
    assert message.startswith("resume: a run must go on as it began, got other values of num_samples (10 in the ")
    assert "num_samples (10 in the checkpoint, 12 now); order_digest (" in message


def test_another_order_is_refused_whatever_settings_are_allowed(stopped):
    message = refused(make_samples(10), request=ResumeRequest(True, None, True), shuffle=True)
    mine, theirs = (trainer_of(shuffle=shuffle) for shuffle in (False, True))
    for trainer in (mine, theirs):
        trainer.fit(make_samples(10))
    digests = [trainer._source.facts(2)["order_digest"] for trainer in (mine, theirs)]
    assert message == refusal(f"order_digest ({digests[0]!r} in the checkpoint, {digests[1]!r} now)")


def test_data_with_a_length_in_place_of_a_stream_is_refused():
    trainer_of(max_steps=4, **SAVED).fit(stream_of(make_samples(10), 2))
    assert "kind ('stream' in the checkpoint, 'indexed' now)" in refused(make_samples(10))


def test_a_stream_in_place_of_data_with_a_length_is_refused(stopped):
    assert "kind ('indexed' in the checkpoint, 'stream' now)" in refused(stream_of(make_samples(10), 2))


def test_another_number_of_shards_is_refused():
    trainer_of(max_steps=2, **SAVED).fit(stream_of(make_samples(10), 4))
    assert refused(stream_of(make_samples(10), 5)) == refusal("num_shards (4 in the checkpoint, 5 now)")


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_another_length_of_a_run_that_decays_to_its_end_is_refused(decay):
    trainer_of(decay=decay, max_steps=4, **SAVED).fit(make_samples(10))
    assert refused(make_samples(10), decay=decay) == refusal(
        "samples of the run, which the decay needs (14 in the checkpoint, 20 now)"
    )


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_another_length_of_a_run_that_decays_before_is_the_same_run(decay):
    settings = {**SAVED, "decay": decay, "decay_epochs": 1.5}
    whole = trainer_of(**{**settings, "run_dir": None})
    whole.fit(make_samples(10))
    trainer_of(max_steps=4, **settings).fit(make_samples(10))
    trainer = resumed(**settings)
    trainer.fit(make_samples(10))
    assert trainer.rates == whole.rates[4:]


# ---------------------------------------------------------------- settings
FREE = {
    **{"epochs": 7, "max_steps": 9, "max_time_s": 5.0, "batch_size": 2, "data_workers": 3, "log_every_steps": 3},
    **{"save_every_steps": 3, "save_every_epochs": 3, "save_every_minutes": 3.0, "keep_last": 3, "keep_best": "loss"},
    **{"early_stop_patience": 3, "stall_timeout_s": 3.0, "check_replicas_every_steps": 3, "on_nonfinite": "skip"},
    **{"compile": True, "eval_every_epochs": 3, "noise_scale": True},
}
FIXED = {
    **{"steps_per_epoch": 3, "optimizer": "adam", "learning_rate": 0.5, "weight_decay": 0.5, "momentum": 0.5},
    **{"betas": (0.5, 0.5), "epsilon": 0.5, "clip_norm": 0.5, "warmup_epochs": 0.5, "decay": "plateau"},
    **{"decay_epochs": 0.5, "decay_factor": 0.5, "final_learning_rate": 0.5, "plateau_patience": 5},
    **{"base_batch_size": 5, "precision": "bf16", "compression": "fp16", "seed": 5, "shuffle": False},
}
BEGAN = TrainConfig(global_batch_size=4)
PLAN = make_plan(BEGAN, num_samples=10, size=1)
DATA = {"kind": "indexed", "num_samples": 10, "order_digest": "d"}
MANIFEST = {
    "config": BEGAN.model_dump(mode="json"),
    "plan": {"sizes": {"global_batch_size": 4}, "total_samples": 10},
    "data": {**DATA, "ledger_digest": [0, 0, 0]},
}


@pytest.mark.parametrize("name", FREE)
def test_setting_that_no_update_depends_on_may_change(name):
    require_same_run(MANIFEST, BEGAN.replace(**{name: FREE[name]}), PLAN, DATA, RESUME)


@pytest.mark.parametrize("name", FIXED)
def test_setting_that_updates_depend_on_must_not_change(name):
    config = BEGAN.replace(**{name: FIXED[name]})
    with pytest.raises(CheckpointError) as caught:
        require_same_run(MANIFEST, config, PLAN, DATA, RESUME)
    value = BEGAN.model_dump(mode="json")[name]
    now = config.model_dump(mode="json")[name]
    assert str(caught.value) == refusal(f"{name} ({value!r} in the checkpoint, {now!r} now)")
    require_same_run(MANIFEST, config, PLAN, DATA, ResumeRequest(True, None, True))


def test_every_setting_is_either_free_or_fixed():
    # Those left out need a partner or belong to the batch, which has tests of its own.
    others = {"global_batch_size", "backward_passes_per_step", "nesterov", "lr_scaling"}
    assert FREE.keys() | FIXED.keys() | others == TrainConfig.model_fields.keys()
    assert FREE.keys() & FIXED.keys() == set()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (4, None, None)),
        ({"batch_size": 2}, (4, 2, None)),
        ({"batch_size": 2, "backward_passes_per_step": 3}, (4, 2, None)),
        ({"global_batch_size": 5, "batch_size": 3}, (5, 3, None)),
    ],
)
def test_settings_to_continue_keep_the_global_batch_that_nobody_changed(given, expected):
    config = settings_to_continue(TrainConfig(**given), {**MANIFEST, "size": 1}, 1)
    assert (config.global_batch_size, config.batch_size, config.backward_passes_per_step) == expected


# ---------------------------------------------------------------- a run folder at rest
def test_a_run_folder_into_which_another_run_has_saved_meanwhile_is_refused(tmp_path):
    commit(tmp_path / "checkpoints", 100, PortableState({"w": np.ones(1)}), {})
    found = Found(tmp_path / "checkpoints/step-00000100", {}, newest="step-00000100")
    request = ResumeRequest(is_wanted=True)
    request.require_at_rest(tmp_path / "checkpoints", found)
    commit(tmp_path / "checkpoints", 110, PortableState({"w": np.ones(1)}), {})
    for chosen in (found, None):
        with pytest.raises(ConfigError, match=r"must be at rest, and another run has just saved \['step-00000110'\]"):
            request.require_at_rest(tmp_path / "checkpoints", chosen)
    ResumeRequest(path=tmp_path).require_at_rest(tmp_path / "checkpoints", replace(found, newest=""))


def test_yes_and_no_are_requests():
    assert resume_request(True) == ResumeRequest(is_wanted=True)
    assert resume_request(False) == ResumeRequest()
    assert resume_request(ResumeRequest(path=Path("a"))) == ResumeRequest(path=Path("a"))


def test_plateau_is_not_continued_with_evaluations_at_other_epochs():
    manifest = {**MANIFEST, "config": {**MANIFEST["config"], "decay": "plateau"}}
    config = BEGAN.replace(decay="plateau", eval_every_epochs=7)
    with pytest.raises(CheckpointError, match="eval_every_epochs"):
        require_same_run(manifest, config, PLAN, DATA, RESUME)


def test_a_setting_that_an_older_version_did_not_know_had_its_default():
    older = {name: value for name, value in MANIFEST["config"].items() if name not in ("nesterov", "precision")}
    require_same_run({**MANIFEST, "config": older}, BEGAN, PLAN, DATA, RESUME)


@pytest.mark.parametrize(("epochs", "is_told"), [(1, True), (2, False), (3, False)])
def test_a_run_that_is_to_end_earlier_than_it_was_to_says_so(caplog, epochs, is_told):
    began = make_plan(TrainConfig(epochs=2, global_batch_size=4), num_samples=10, size=1)
    now = make_plan(TrainConfig(epochs=epochs, global_batch_size=4), num_samples=10, size=1)
    warn_of_fewer_steps({"plan": {"total_steps": began.total_steps}}, now)
    told = (
        "resume: the run was to make 6 steps and ends after 3 now; a checkpoint keeps no length, give --epochs or "
        "--max-steps again"
    )
    assert caplog.messages == [told] * is_told
