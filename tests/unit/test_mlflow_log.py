from __future__ import annotations

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hvdtrain.errors import ConfigError
from hvdtrain.mlflow_log import MlflowLog
from tests.unit.numpy_trainer import AtStep, make_samples, trainer_of

needs_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="the package mlflow is not installed; pip install mlflow-skinny"
)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A folder in which MLflow keeps runs, without a server."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "store").as_uri()


def run_of(store):
    client = importlib.import_module("mlflow").MlflowClient(tracking_uri=store)
    (experiment,) = [found for found in client.search_experiments() if found.name == "linear"]
    (run,) = client.search_runs([experiment.experiment_id])
    return client, run


@needs_mlflow
@pytest.mark.usefixtures("after_fit")
def test_every_row_and_the_settings_reach_mlflow(store, tmp_path):
    trainer = trainer_of([MlflowLog("linear", tracking_uri=store)], run_dir=tmp_path / "first")
    trainer.fit(make_samples(10), make_samples(5))
    client, run = run_of(store)
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.params["learning_rate"] == "0.05"
    assert [point.step for point in client.get_metric_history(run.info.run_id, "train/loss")] == [4, 8, 10]
    assert run.data.metrics.keys() >= {"train/loss", "train/grad_norm", "train/learning_rate", "eval/loss"}


@needs_mlflow
@pytest.mark.usefixtures("after_fit")
def test_run_that_fails_is_told_as_failed(store):
    def fail(trainer):
        raise LookupError("a fault")

    with pytest.raises(LookupError):
        trainer_of([MlflowLog("linear", tracking_uri=store), AtStep(fail, 2)]).fit(make_samples(10))
    assert run_of(store)[1].info.status == "FAILED"


def test_missing_mlflow_is_told_with_the_cure(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    trainer = SimpleNamespace(communicator=SimpleNamespace(run_on_root=lambda action: action()))
    with pytest.raises(ConfigError) as caught:
        MlflowLog("linear").on_fit_begin(trainer)
    assert str(caught.value) == (
        "MlflowLog: the package mlflow must be installed, got none. Run 'pip install mlflow-skinny'."
    )


def test_mlflow_is_loaded_by_use_alone():
    program = (
        "import sys; from hvdtrain.mlflow_log import MlflowLog; MlflowLog('x').close(); print('mlflow' in sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "False"
