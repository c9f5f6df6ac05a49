"""What must hold before the first step: settings that fit the data, and ranks that start the same run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from hvdtrain.communicator import Communicator
from hvdtrain.config import TrainConfig
from hvdtrain.errors import ConfigError
from hvdtrain.plan import RunPlan
from hvdtrain.versions import installed_versions
from hvdtrain.wording import counted


def check_evaluation(config: TrainConfig, plan: RunPlan) -> None:
    """Refuse settings that decide by an evaluation which the run does not make.

    Raises:
        ConfigError: Such a setting without evaluation data.
    """
    needs = [name for name in ("early_stop_patience", "keep_best") if getattr(config, name) is not None]
    if config.decay == "plateau":
        needs.append("decay='plateau'")
    if needs and plan.num_eval_samples is None:
        raise ConfigError(f"plan: {needs[0]} needs evaluations, got no eval_data. Give the job eval_data().")


def check_noise_scale(config: TrainConfig, plan: RunPlan, num_ranks: int) -> None:
    """Refuse an estimate that compares ranks where no two of them ever have samples.

    Raises:
        ConfigError: One rank, or a global batch of one sample.
    """
    if config.noise_scale and min(num_ranks, plan.sizes.global_batch_size) < 2:
        raise ConfigError(
            f"plan: noise_scale compares the gradients of at least 2 ranks, got {counted(num_ranks, 'rank')} with a "
            f"global batch of {counted(plan.sizes.global_batch_size, 'sample')}. Start with -np 2, or leave it out."
        )


def check_best(config: TrainConfig, metric_names: Sequence[str]) -> None:
    """Refuse a metric to keep the best checkpoint by that no evaluation gives.

    Raises:
        ConfigError: Lists the metrics that there are.
    """
    if config.keep_best is not None and config.keep_best not in metric_names:
        raise ConfigError(
            f"plan: keep_best must be one of {', '.join(metric_names)}, got {config.keep_best!r}. "
            "Name a metric of the job."
        )


def agree_on_run(
    communicator: Communicator, framework: str, config: TrainConfig, plan: RunPlan, job_digest: str
) -> None:
    """Refuse, on all ranks, when ranks would not start the same run.

    Raises:
        RankError: Versions, job file, data length or a setting differ; the message lists both values.
    """
    communicator.agree("versions", installed_versions(framework), "Install the same versions on every host.")
    facts = {
        "framework": framework,
        "len(train_data)": plan.num_samples,
        "len(eval_data)": plan.num_eval_samples,
        "job file": job_digest,
        **config.model_dump(),
        **asdict(plan.sizes),
    }
    communicator.agree("plan", facts, "Give every rank the same job, data and options.")
