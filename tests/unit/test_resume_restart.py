"""What a run does when its launcher has launched it again: the command is the same, the environment tells."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hvdtrain.config import TrainConfig
from hvdtrain.errors import ConfigError
from hvdtrain.launch.telling import FIRST_RANKS, LAUNCHER, RESTART
from hvdtrain.resume import ResumeRequest, settings_to_continue, settings_to_restart
from tests.unit.numpy_trainer import make_samples, trainer_of
from tests.unit.resuming import RESUME, kill_at, outcome

pytestmark = pytest.mark.usefixtures("after_fit")
FIRST = {LAUNCHER: "one"}
SECOND = {LAUNCHER: "one", RESTART: "1"}
SAVED = {"epochs": 2, "save_every_steps": 1}
CHECKPOINTS = Path("run/checkpoints")


@pytest.fixture
def launch(monkeypatch):
    """A function that makes this process a rank of an attempt."""

    def launch(environ):
        for name in (LAUNCHER, RESTART, FIRST_RANKS):
            monkeypatch.delenv(name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)

    launch({})
    return launch


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ResumeRequest()),
        (FIRST, ResumeRequest(launch_id="one")),
        (SECOND, ResumeRequest(launch_id="one", is_restart=True)),
        ({RESTART: "0"}, ResumeRequest()),  # as a batch system counts that has not requeued the job
        ({RESTART: "2"}, ResumeRequest(is_restart=True)),
    ],
)
def test_in_launch_reads_the_environment(environ, expected):
    assert ResumeRequest().in_launch(environ) == expected
    assert RESUME.in_launch(environ).is_wanted


# ---------------------------------------------------------------- the same command
def test_the_second_attempt_ends_where_the_undisturbed_run_ends(launch):
    data = make_samples(10)
    plain = outcome("plain", trainer_of(run_dir="plain", **SAVED).fit(data, data))
    launch(FIRST)
    kill_at(4, data, data, run_dir="run", **SAVED)
    launch(SECOND)
    assert outcome("run", trainer_of(run_dir="run", **SAVED).fit(data, data)) == plain


def test_the_second_attempt_starts_fresh_where_the_first_left_no_checkpoint(launch, caplog):
    data = make_samples(10)
    launch(FIRST)
    kill_at(4, data, run_dir="run", epochs=2)
    launch(SECOND)
    with caplog.at_level("INFO", "hvdtrain.resume"):
        assert trainer_of(run_dir="run", epochs=2).fit(data)["global_step"] == 6
    assert "resume: no checkpoint in run/checkpoints, starting fresh" in caplog.messages
    rows = [json.loads(line)["global_step"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert rows == [1, 2, 3, 4, 5, 6]


def test_the_first_attempt_does_not_resume_by_itself(launch):
    trainer_of(run_dir="run", **SAVED).fit(make_samples(10))
    launch(FIRST)
    with pytest.raises(ConfigError, match=r"^run folder: run must be new, got one that holds "):
        trainer_of(run_dir="run", **SAVED).fit(make_samples(10))


@pytest.mark.parametrize("owner", [None, "two", "one more"])
def test_the_second_attempt_leaves_the_run_of_another_launch_alone(launch, owner):
    # The first one may have failed before it could refuse the folder.
    if owner is not None:
        launch({LAUNCHER: owner})
    trainer_of(run_dir="run", **SAVED).fit(make_samples(10))
    launch(SECOND)
    with pytest.raises(ConfigError, match=r"^run folder: run must be new, got one that holds ") as caught:
        trainer_of(run_dir="run", **SAVED).fit(make_samples(10))
    assert caught.value.exit_code == 2


def test_the_second_attempt_of_a_launch_that_resumes_resumes(launch):
    data = make_samples(10)
    plain = outcome("plain", trainer_of(run_dir="plain", **SAVED).fit(data))
    kill_at(2, data, run_dir="run", **SAVED)
    launch(SECOND)
    assert outcome("run", trainer_of(run_dir="run", resume=RESUME, **SAVED).fit(data)) == plain


def test_a_restart_without_a_launcher_resumes_as_asked(launch):
    kill_at(2, make_samples(10), run_dir="run", **SAVED)
    launch({RESTART: "1"})
    assert trainer_of(run_dir="run", **SAVED).fit(make_samples(10))["global_step"] == 6


# ---------------------------------------------------------------- which checkpoint
def test_find_at_a_restart_takes_the_path_only_while_the_run_folder_has_none():
    kill_at(4, make_samples(10), run_dir="run", **SAVED)
    other = Path("other/step-00000001")
    shutil.copytree(CHECKPOINTS / "step-00000001", other)
    request = ResumeRequest(path=other)
    restarted = request.in_launch(SECOND)
    assert request.find(CHECKPOINTS).path == other
    assert restarted.find(CHECKPOINTS).path.name == "step-00000003"
    assert restarted.find(Path("new/checkpoints")).path == other


def test_sign_replaces_a_link_and_a_link_is_not_followed():
    Path("run").mkdir()
    Path("target").write_text("one")
    Path("run/.launch").symlink_to("../target")
    restarted = ResumeRequest().in_launch(SECOND)
    assert not restarted.may_continue(Path("run"))
    ResumeRequest().in_launch({LAUNCHER: "three"}).sign(Path("run"))
    assert (Path("target").read_text(), Path("run/.launch").read_text()) == ("one", "three")
    restarted.sign(Path("run"))
    assert restarted.may_continue(Path("run"))
    assert [path.name for path in Path("run").iterdir()] == [".launch"]


# ---------------------------------------------------------------- the global batch
def sizes(config):
    return config.global_batch_size, config.batch_size, config.backward_passes_per_step


ALL_THREE = {"global_batch_size": 16, "batch_size": 2, "backward_passes_per_step": 2}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (ALL_THREE, (16, 2, None)),
        ({"batch_size": 2, "backward_passes_per_step": 2}, (16, 2, None)),
        ({"batch_size": 4}, (16, 4, None)),
        ({"global_batch_size": 16, "backward_passes_per_step": 2}, (16, None, 2)),
        ({"global_batch_size": 16}, (16, None, None)),
    ],
)
def test_fewer_ranks_keep_the_global_batch(given, expected):
    config = TrainConfig(**given)
    manifest = {"size": 4, "plan": {"sizes": {"global_batch_size": 16}}}
    assert sizes(settings_to_continue(config, manifest, 3)) == expected
    assert sizes(settings_to_restart(config, 3, {FIRST_RANKS: "4"})) == expected


def test_as_many_ranks_keep_all_numbers():
    config = TrainConfig(**ALL_THREE)
    manifest = {"size": 4, "plan": {"sizes": {"global_batch_size": 16}}}
    assert settings_to_continue(config, manifest, 4) == config
    for environ in ({}, {FIRST_RANKS: "4"}):
        assert settings_to_restart(TrainConfig(batch_size=4), 4, environ) == TrainConfig(batch_size=4)


def test_a_run_whose_numbers_only_fit_more_ranks_goes_on_alone(launch):
    data = make_samples(10)
    numbers = {"global_batch_size": 4, "batch_size": 1, "backward_passes_per_step": 2}
    plain = trainer_of(run_dir="plain", epochs=2).fit(data)
    launch({**SECOND, FIRST_RANKS: "2"})
    assert trainer_of(run_dir="run", epochs=2, **numbers).fit(data)["train"] == plain["train"]
