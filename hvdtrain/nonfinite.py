"""Find where a loss or gradient that is not finite came from: which rank, which samples."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NoReturn

from hvdtrain.data import MicroBatch, map_structure
from hvdtrain.errors import NonFiniteError
from hvdtrain.step import StepResult

if TYPE_CHECKING:
    from hvdtrain.trainer import Trainer

#: Samples that a message lists.
_LISTED = 8


def raise_nonfinite(trainer: Trainer, step: int, result: StepResult, micro_batches: Sequence[MicroBatch]) -> NoReturn:
    """Recompute this rank's share, sample by sample, and raise on every rank what was found on any.

    Every rank must call, with weights as they were in the step: a step that is not finite updates nothing.

    Raises:
        NonFiniteError: Always; names ranks and samples.
    """
    found = trainer.communicator.all_gather(find_nonfinite(trainer, micro_batches))
    places = [f"rank {rank} ({text})" for rank, text in enumerate(found) if text]
    where = f" It comes from {', '.join(places)}." if places else " No sample does so alone: the sum overflows."
    error = NonFiniteError(
        f"step {step}: loss and gradient must be finite, got loss sum {result.loss_sum} and gradient norm "
        f"{result.grad_norm}.{where} Mend the data, lower the learning rate, or set on_nonfinite='skip'."
    )
    error.is_agreed = True
    raise error


def find_nonfinite(trainer: Trainer, micro_batches: Sequence[MicroBatch]) -> str:
    """Return this rank's samples whose loss or gradient is not finite, in words; empty when there is none."""
    rows: list[str] = []
    for number, batch in enumerate(micro_batches):
        if trainer.is_finite(trainer.make_batch(batch)):
            continue
        for index in range(batch.num_samples):
            one = MicroBatch(map_structure(batch.data, itemgetter(slice(index, index + 1))), 1)
            if not trainer.is_finite(trainer.make_batch(one)):
                name = f"number {index} of micro-batch {number}" if batch.rows is None else str(batch.rows[index])
                rows.append(name)
    if not rows:
        return ""
    more = f" and {len(rows) - _LISTED} more" if len(rows) > _LISTED else ""
    return f"samples {', '.join(rows[:_LISTED])}{more}"
