"""Rows of metrics and the settings of a run in MLflow, for those who keep their runs there."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtrain.callbacks import Callback, Row, StepReport
from hvdtrain.errors import ConfigError

if TYPE_CHECKING:
    from hvdtrain.trainer import Trainer


class MlflowLog(Callback):
    """Writes every number of every row against samples seen, and the settings once; on the root alone.

    MLflow is loaded when training begins, and by nothing else in this package. In a job file::

        def callbacks():
            return [hvdtrain.MlflowLog(experiment="digits")]
    """

    def __init__(self, experiment: str, *, tracking_uri: str | None = None, run_name: str | None = None) -> None:
        """Write into an experiment, which is made where it does not exist.

        Args:
            experiment: Its name.
            tracking_uri: Where MLflow keeps runs; as ``MLFLOW_TRACKING_URI`` says when not given.
            run_name: Name of the run; that of the run folder when not given.
        """
        self._experiment, self._tracking_uri, self._run_name = experiment, tracking_uri, run_name
        self._client: Any = None
        self._run_id = ""
        self._status = "FAILED"

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Begin a run of MLflow with the settings of this one.

        Raises:
            ConfigError: MLflow is not installed; on all ranks together.
        """
        trainer.communicator.run_on_root(lambda: self._begin(trainer))

    def on_step_end(self, trainer: Trainer, report: StepReport) -> None:
        """Write the row of training metrics."""
        if report.row is not None:
            self._write(report.row)

    def on_evaluate(self, trainer: Trainer, row: Row) -> None:
        """Write the row of an evaluation."""
        self._write(row)

    def on_fit_end(self, trainer: Trainer, summary: Row) -> None:
        """Remember that the run ended well."""
        self._status = "FINISHED"

    def close(self) -> None:
        """End the run of MLflow, as finished or as failed."""
        if self._client is not None:
            self._client.set_terminated(self._run_id, self._status)
            self._client = None

    def _begin(self, trainer: Trainer) -> None:
        if importlib.util.find_spec("mlflow") is None:
            raise ConfigError(
                "MlflowLog: the package mlflow must be installed, got none. Run 'pip install mlflow-skinny'."
            )
        client = importlib.import_module("mlflow").MlflowClient(tracking_uri=self._tracking_uri)
        found = client.get_experiment_by_name(self._experiment)
        experiment_id = found.experiment_id if found is not None else client.create_experiment(self._experiment)
        name = self._run_name or (None if trainer.run_dir is None else Path(trainer.run_dir).name)
        self._run_id = client.create_run(experiment_id, run_name=name).info.run_id
        self._client = client
        facts = {
            "framework": trainer.framework,
            "size": trainer.topology.size,
            **trainer.config.model_dump(mode="json"),
        }
        for setting, value in facts.items():
            client.log_param(self._run_id, setting, value)

    def _write(self, row: Row) -> None:
        if self._client is None:
            return
        for name, value in row.items():
            if isinstance(value, float):
                self._client.log_metric(self._run_id, f"{row['event']}/{name}", value, step=row["samples_seen"])
