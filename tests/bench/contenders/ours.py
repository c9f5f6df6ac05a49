"""The job under hvdtrain's own trainer, with a callback that holds the stopwatch."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import hvdtrain
from tests.bench.contenders.problem import Problem, Stopwatch, parse_arguments


class Watch(hvdtrain.Callback):
    """Times every step."""

    def __init__(self, problem: Problem) -> None:
        self._watch = Stopwatch(problem)

    def on_step_end(self, trainer: Any, report: Any) -> None:
        self._watch.step_done()

    def on_fit_end(self, trainer: Any, summary: Any) -> None:
        self._watch.tell(trainer.topology.rank)


def train(trainer_class: Any, framework: str) -> None:
    """Train what the other contenders train."""
    problem = parse_arguments()
    config = problem.job.config.replace(
        global_batch_size=2 * problem.batch_size * problem.accumulation,
        batch_size=problem.batch_size,
        max_steps=problem.warm_up + problem.num_steps,
    )
    with tempfile.TemporaryDirectory(prefix="hvdtrain-bench.") as folder:
        trainer = trainer_class(
            problem.job.required(f"{framework}_model"),
            loss=problem.job.required(f"{framework}_loss"),
            config=config,
            run_dir=Path(folder) / "run",
            callbacks=[Watch(problem)],
        )
        trainer.fit(problem.job.required("train_data")())
