from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from hvdtrain import registry
from hvdtrain.checkpoint import find_latest
from hvdtrain.errors import AdapterError, ConfigError
from hvdtrain.job_options import GivenOptions
from hvdtrain.resume import ResumeRequest
from hvdtrain.train_job import train_job

JOB = """
from pathlib import Path

import hvdtrain
from tests.unit.numpy_trainer import Linear, make_samples, squared_error

config = hvdtrain.TrainConfig(global_batch_size=4, learning_rate=0.05, log_every_steps=1)
torch_loss = squared_error


def torch_model():
    return Linear()


def train_data():
    return make_samples(10)
"""
EVALUATION = """
def eval_data():
    return make_samples(5)


def torch_metrics(model, batch):
    return {"negative": batch["y"] < 0}
"""


@pytest.fixture(autouse=True)
def unchanged_process(monkeypatch, tmp_path):
    """Serve 'torch' by the NumPy trainer, and take back what a run leaves in this process."""
    monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", "1")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setitem(registry._ADAPTERS, "torch", ("tests.unit.numpy_trainer", "NumpyTrainer"))
    logger = logging.getLogger("hvdtrain")
    before = logger.handlers, logger.propagate, logger.level
    modules = set(sys.modules)
    yield
    logger.handlers, logger.propagate, logger.level = before
    for name in set(sys.modules) - modules:
        if name.startswith("hvdtrain_job_"):
            del sys.modules[name]


@pytest.fixture
def with_packages(monkeypatch, tmp_path):
    """Let torch and horovod be found, also where they are not installed; nobody imports them."""
    for name in ("torch", "horovod"):
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").write_text("raise ImportError\n")
    monkeypatch.syspath_prepend(tmp_path / "packages")


def write_job(text, name="job.py"):
    Path(name).write_text(text)
    return Path(name)


def start(path, *, framework=None, run_dir=None, init_from=None, resume=None, settings=None, is_quiet=False):
    return train_job(
        path,
        framework=framework,
        run_dir=run_dir,
        init_from=init_from,
        trace_every_steps=None,
        resume=resume or ResumeRequest(),
        settings=settings or {},
        options=GivenOptions({}),
        is_quiet=is_quiet,
    )


def run(text, *, framework=None, run_dir=None, name="job.py", **settings):
    return start(write_job(text, name), framework=framework, run_dir=run_dir, settings=settings)


@pytest.mark.usefixtures("with_packages")
def test_train_job_runs_the_job_into_a_folder_named_after_it():
    summary = run(JOB, name="digits.py")
    assert (summary["framework"], summary["global_step"], summary["samples_seen"]) == ("torch", 3, 10)
    assert summary["eval"] is None
    assert json.loads(Path("runs/digits-torch/summary.json").read_text()) == summary


@pytest.mark.usefixtures("with_packages")
def test_train_job_takes_evaluation_and_metrics_of_the_job():
    summary = run(JOB + EVALUATION, framework="torch", run_dir=Path("here"))
    # The targets are -2, -1, 0, 1, 2.
    assert summary["eval"]["negative"] == 0.4
    assert Path("here/summary.json").is_file()
    assert not Path("runs").exists()


@pytest.mark.usefixtures("with_packages")
def test_settings_stand_above_those_of_the_job():
    run(JOB, run_dir=Path("run"), epochs=2, global_batch_size=5)
    config = json.loads(Path("run/config.json").read_text())
    assert (config["epochs"], config["global_batch_size"], config["learning_rate"]) == (2, 5, 0.05)


@pytest.mark.usefixtures("with_packages")
def test_job_passes_augment_collate_and_digest():
    text = JOB + (
        "def augment(sample, rng):\n    return {**sample, 'y': sample['y'] * 0}\n"
        "def collate(samples):\n    from hvdtrain.data import stack\n    return stack(samples)\n"
    )
    summary = run(text)
    assert summary["train"] == {"loss": 0.0}


@pytest.mark.usefixtures("with_packages")
def test_prepare_data_runs_once_before_train_data():
    text = JOB.replace("return make_samples(10)", "return make_samples(int(Path('count').read_text()))")
    text += "def prepare_data():\n    assert not Path('count').exists()\n    Path('count').write_text('7')\n"
    assert run(text)["samples_seen"] == 7


@pytest.mark.usefixtures("with_packages")
def test_rows_are_logged_to_the_console(capfd):
    run(JOB, log_every_steps=3)
    lines = capfd.readouterr().err.splitlines()
    assert [line.split("  loss")[0] for line in lines if line.startswith("train ")] == ["train epoch 1  step 3"]
    assert lines[0].startswith("hvdtrain ")
    assert lines[-1] == "  run folder  runs/job-torch"


@pytest.mark.usefixtures("with_packages")
def test_quiet_run_prints_nothing(capfd):
    start(write_job(JOB), is_quiet=True)
    assert capfd.readouterr() == ("", "")
    assert Path("runs/job-torch/summary.json").is_file()


CALLBACKS = """
class Stops(hvdtrain.Callback):
    def on_step_end(self, trainer, report):
        trainer.request_stop()


def callbacks():
    return [Stops()]
"""


@pytest.mark.usefixtures("with_packages")
def test_callbacks_of_the_job_run():
    assert run(JOB + CALLBACKS)["global_step"] == 2  # the one after the request


@pytest.mark.usefixtures("with_packages")
@pytest.mark.parametrize("made", ["[Stops]", "Stops()", "None"])
def test_callbacks_that_are_none_are_refused(made):
    with pytest.raises(ConfigError) as caught:
        run(JOB + CALLBACKS.replace("[Stops()]", made))
    told = str(caught.value)
    assert told.startswith("job.py: callbacks() must return a list of hvdtrain.Callback, got ")
    assert told.endswith(". Derive each from hvdtrain.Callback.")
    assert not Path("runs").exists()


@pytest.mark.usefixtures("with_packages")
def test_error_of_train_data_is_raised():
    with pytest.raises(OSError, match=r"^no disk$"):
        run(JOB.replace("return make_samples(10)", "raise OSError('no disk')"))
    assert not Path("runs").exists()


@pytest.mark.usefixtures("with_packages")
def test_init_from_begins_with_the_weights_of_a_checkpoint():
    run(JOB, run_dir=Path("first"))
    start(
        write_job(JOB),
        run_dir=Path("second"),
        init_from=Path("first/checkpoints/step-00000003"),
        settings={"max_steps": 0},
    )
    first, second = (find_latest(Path(name) / "checkpoints").state.weights for name in ("first", "second"))
    assert first["weight"].tolist() == second["weight"].tolist() != [0.0, 0.0]


@pytest.mark.usefixtures("with_packages")
def test_resume_continues_the_run_of_the_folder():
    run(JOB, run_dir=Path("run"), max_steps=1)
    summary = start(
        Path("job.py"), run_dir=Path("run"), resume=ResumeRequest(is_wanted=True), settings={"max_steps": 3}
    )
    assert (summary["global_step"], summary["samples_seen"]) == (3, 10)
    assert summary["ledger"]["train"] == {"once": 10, "more": 0, "never": 0}


# ---------------------------------------------------------------- refusals
def test_missing_job_raises():
    with pytest.raises(ConfigError) as caught:
        start(Path("none.py"))
    assert str(caught.value) == "job: must be a Python file, got 'none.py', which does not exist. Check the path."
    assert caught.value.is_agreed is True


def test_bad_setting_raises():
    with pytest.raises(ConfigError) as caught:
        run(JOB, epochs=0)
    assert str(caught.value) == "TrainConfig: epochs must be at least 1, got 0."
    assert caught.value.is_agreed is True


def test_framework_that_the_job_does_not_serve_raises():
    with pytest.raises(ConfigError, match=r"^job\.py: --framework tensorflow needs the functions "):
        run(JOB, framework="tensorflow")


@pytest.mark.parametrize(("name", "hint"), [("pytorch", " Did you mean 'torch'?"), ("jax", "")])
def test_unknown_framework_raises_with_the_known_ones(name, hint):
    with pytest.raises(AdapterError) as caught:
        run(JOB, framework=name)
    assert str(caught.value) == (
        f"load_trainer: unknown framework {name!r}, expected one of 'tensorflow', 'torch'.{hint}"
    )
