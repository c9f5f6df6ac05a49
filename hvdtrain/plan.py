"""How long a run is: epochs, steps and samples, all known before the first step and the same on every rank."""

from __future__ import annotations

from dataclasses import dataclass

from hvdtrain.batching import BatchSizes, resolve_batch_sizes
from hvdtrain.config import TrainConfig
from hvdtrain.errors import ConfigError, DataError


@dataclass(frozen=True)
class RunPlan:
    """The whole run in numbers.

    Attributes:
        sizes: Global batch, batch per rank and pass, and passes.
        num_samples: Training samples, ``None`` for a stream.
        num_eval_samples: Evaluation samples, ``None`` without evaluation.
        steps_per_epoch: Updates of one epoch; ``None`` for a stream that says its own end.
        epochs: Epochs that are begun; ``None`` when only ``max_steps`` ends the run.
        total_steps: Updates of the run; ``None`` when only the stream's end tells.
    """

    sizes: BatchSizes
    num_samples: int | None
    num_eval_samples: int | None
    steps_per_epoch: int | None
    epochs: int | None
    total_steps: int | None

    @property
    def samples_per_epoch(self) -> int | None:
        """Samples that one epoch sees, a short last batch counted as it is."""
        if self.num_samples is not None:
            return self.num_samples
        if self.steps_per_epoch is None:
            return None
        return self.steps_per_epoch * self.sizes.global_batch_size

    @property
    def total_samples(self) -> int | None:
        """Samples that the whole run sees."""
        per_epoch, batch = self.samples_per_epoch, self.sizes.global_batch_size
        if self.total_steps is None:
            return None
        if per_epoch is None or self.steps_per_epoch is None:
            return self.total_steps * batch
        epochs, rest = divmod(self.total_steps, self.steps_per_epoch)
        return epochs * per_epoch + min(rest * batch, per_epoch)


def make_plan(
    config: TrainConfig, *, num_samples: int | None, num_eval_samples: int | None = None, size: int
) -> RunPlan:
    """Return the run that ``config`` describes, for ``size`` ranks.

    Args:
        config: The settings.
        num_samples: Length of the training data; ``None`` for a stream.
        num_eval_samples: Length of the evaluation data; ``None`` without any.
        size: Number of ranks; moves nothing but ``sizes.batch_size`` and the passes.

    Raises:
        DataError: No sample to train on, or to evaluate on.
        ConfigError: The batch numbers contradict each other, or a setting needs a length that a stream lacks.
    """
    sizes = resolve_batch_sizes(
        size=size,
        global_batch_size=config.global_batch_size,
        batch_size=config.batch_size,
        backward_passes_per_step=config.backward_passes_per_step,
    )
    for name, length in (("train_data", num_samples), ("eval_data", num_eval_samples)):
        if length == 0:
            raise DataError(
                f"plan: {name} must hold at least 1 sample, got 0. Check the path or the filter that made it."
            )
    steps_per_epoch = _steps_per_epoch(config, num_samples, sizes)
    epochs = config.epochs if config.epochs or config.max_steps is not None else 1
    total = _total_steps(config.max_steps, epochs, steps_per_epoch)
    if epochs is None and steps_per_epoch is not None and total is not None:
        epochs = max(1, -(-total // steps_per_epoch))
    return RunPlan(sizes, num_samples, num_eval_samples, steps_per_epoch, epochs, total)


def _steps_per_epoch(config: TrainConfig, num_samples: int | None, sizes: BatchSizes) -> int | None:
    if num_samples is None:
        return config.steps_per_epoch
    if config.steps_per_epoch is not None:
        raise ConfigError(
            f"plan: steps_per_epoch is for data without length, got {config.steps_per_epoch} "
            f"for {num_samples} samples. Use max_steps to end a run early."
        )
    return -(-num_samples // sizes.global_batch_size)


def _total_steps(max_steps: int | None, epochs: int | None, per_epoch: int | None) -> int | None:
    by_epochs = None if epochs is None or per_epoch is None else epochs * per_epoch
    limits = [limit for limit in (max_steps, by_epochs) if limit is not None]
    return min(limits) if limits else None
