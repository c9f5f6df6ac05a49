"""Run a job file: every step that must happen on all ranks together, in order."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdtrain.communicator import Communicator, connect
from hvdtrain.failure import ends_all_ranks
from hvdtrain.job import Job, load_job
from hvdtrain.registry import load_trainer
from hvdtrain.resume import ResumeRequest
from hvdtrain.trainer import Summary


def train_job(
    path: Path,
    *,
    framework: str | None,
    run_dir: Path | None,
    init_from: Path | None,
    trace_every_steps: int | None,
    resume: ResumeRequest,
    settings: Mapping[str, Any],
) -> Summary:
    """Load the job, choose the framework, prepare the data, and fit.

    Args:
        path: The job file.
        framework: The wanted framework; ``None`` for the only one that the job serves.
        run_dir: Folder of the run; ``runs/<job>-<framework>`` when ``None``.
        init_from: Checkpoint whose weights training starts from.
        trace_every_steps: Write norms each step, and all weights every so many steps.
        resume: Whether and from where to continue a run.
        settings: Fields of TrainConfig that stand above those of the job.

    Raises:
        HvdTrainError: On all ranks together.
    """
    communicator = connect()
    with ends_all_ranks(communicator):
        job = communicator.together(lambda: load_job(path))
        config = communicator.together(lambda: job.config.replace(**settings))
        chosen = communicator.together(lambda: job.choose_framework(framework))
        trainer_class = communicator.together(lambda: load_trainer(chosen))
        _log_to_console(communicator)
        _prepare_data(job, communicator)
        train_data = communicator.together(job.required("train_data"))
        make_eval = job.function("eval_data")
        eval_data = communicator.together(make_eval) if make_eval else None
        trainer = trainer_class(
            job.required(f"{chosen}_model"),
            loss=job.required(f"{chosen}_loss"),
            metrics=job.function(f"{chosen}_metrics"),
            config=config,
            optimizer=job.function(f"{chosen}_optimizer"),
            run_dir=run_dir or Path("runs") / f"{job.name}-{chosen}",
            augment=job.function("augment"),
            collate=job.function("collate"),
            names=job.names,
            init_from=init_from,
            trace_every_steps=trace_every_steps,
            resume=resume,
            job_digest=job.digest,
        )
        return trainer.fit(train_data, eval_data)


def _prepare_data(job: Job, communicator: Communicator) -> None:
    """Run the job's ``prepare_data`` in one process per host while the others wait; its failure ends all."""
    prepare = job.function("prepare_data")
    if prepare is not None:
        communicator.together(lambda: prepare() if communicator.topology.local_rank == 0 else None)


def _log_to_console(communicator: Communicator) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("hvdtrain")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO if communicator.topology.is_root else logging.WARNING)
