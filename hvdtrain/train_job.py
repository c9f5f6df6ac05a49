"""Run a job file: every step that must happen on all ranks together, in order."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdtrain.callbacks import Callback
from hvdtrain.communicator import Communicator, connect
from hvdtrain.errors import ConfigError
from hvdtrain.failure import ends_all_ranks
from hvdtrain.job import Job, load_job
from hvdtrain.job_options import GivenOptions
from hvdtrain.position import Position
from hvdtrain.registry import load_trainer
from hvdtrain.resume import ResumeRequest
from hvdtrain.trainer import Summary
from hvdtrain.watchdog import Watchdog


def train_job(
    path: Path,
    *,
    framework: str | None,
    run_dir: Path | None,
    init_from: Path | None,
    trace_every_steps: int | None,
    resume: ResumeRequest,
    settings: Mapping[str, Any],
    options: GivenOptions,
    is_quiet: bool = False,
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
        options: What the command line gave for the job's own options.
        is_quiet: Print warnings and errors alone.

    Raises:
        HvdTrainError: On all ranks together.
    """
    communicator = connect()
    with ends_all_ranks(communicator):
        job = communicator.together(lambda: _load(path, options))
        config = communicator.together(lambda: job.config.replace(**settings))
        chosen = communicator.together(lambda: job.choose_framework(framework))
        with Watchdog(communicator, Position("import"), config.stall_timeout_s):
            trainer_class = communicator.together(lambda: load_trainer(chosen))
        _log_to_console(communicator, is_quiet=is_quiet)
        _prepare_data(job, communicator)
        with Watchdog(communicator, Position("data"), config.stall_timeout_s):
            train_data = communicator.together(job.required("train_data"))
            make_eval = job.function("eval_data")
            eval_data = communicator.together(make_eval) if make_eval else None
        trainer = trainer_class(
            job.required(f"{chosen}_model"),
            loss=job.required(f"{chosen}_loss"),
            metrics=job.function(f"{chosen}_metrics"),
            config=config,
            optimizer=job.function(f"{chosen}_optimizer"),
            callbacks=communicator.together(lambda: _make_callbacks(job)),
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


def _load(path: Path, options: GivenOptions) -> Job:
    job = load_job(path, options)
    options.require_all_asked()
    return job


def _prepare_data(job: Job, communicator: Communicator) -> None:
    """Run the job's ``prepare_data`` in one process per host while the others wait; its failure ends all.

    No watchdog stands beside it: it is work of one rank on purpose, and may take as long as it needs.
    """
    prepare = job.function("prepare_data")
    if prepare is not None:
        communicator.together(lambda: prepare() if communicator.topology.local_rank == 0 else None)


def _make_callbacks(job: Job) -> Sequence[Callback]:
    """Return what the job's ``callbacks`` makes on this rank."""
    make = job.function("callbacks")
    made = make() if make is not None else ()
    if not isinstance(made, Sequence) or not all(isinstance(callback, Callback) for callback in made):
        raise ConfigError(
            f"{job.path}: callbacks() must return a list of hvdtrain.Callback, got {made!r}. "
            "Derive each from hvdtrain.Callback."
        )
    return made


def _log_to_console(communicator: Communicator, *, is_quiet: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("hvdtrain")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO if communicator.topology.is_root and not is_quiet else logging.WARNING)
