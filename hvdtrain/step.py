"""The step tensor: the few numbers that ride with the gradients, so that every rank takes the same branch.

Each rank fills a vector, Horovod sums it in the cycle that sums the gradients, and every rank reads the same
sums. An adapter may append numbers of its own after the fields named here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Order of the numbers in the step tensor, each a sum over ranks.
STEP_FIELDS = (
    *("loss_sum", "weight_sum", "num_samples", "num_passes", "stop_votes", "end_votes", "save_votes"),
    *("num_shares", "share_norms"),
)


@dataclass(frozen=True)
class StepVotes:
    """What one rank has to say in a step, beside its gradients.

    Attributes:
        num_samples: Samples of this rank in the step.
        num_passes: Backward passes of this rank in the step.
        stop: This rank wants to stop after the step (signal, time limit, a callback).
        end: This rank's stream has no sample left for the next step.
        save: This rank wants a checkpoint after the step; the root's clock does.
    """

    num_samples: int
    num_passes: int
    stop: bool = False
    end: bool = False
    save: bool = False

    def vector(self, loss_sum: float, weight_sum: float, own_norm: float = 0.0) -> list[float]:
        """Return this rank's step tensor in the order of ``STEP_FIELDS``.

        Args:
            loss_sum: Weighted sum of this rank's losses.
            weight_sum: Sum of its weights.
            own_norm: 2-norm of the gradient of ``loss_sum``; 0 where nobody asks for the noise scale.
        """
        return [loss_sum, weight_sum, *self.tail(), own_norm**2 / max(self.num_samples, 1)]

    def tail(self) -> list[float]:
        """Return the fields that are known before the forward pass: all but the first two and the last."""
        votes = (self.num_samples, self.num_passes, self.stop, self.end, self.save, self.num_samples > 0)
        return [float(vote) for vote in votes]


@dataclass(frozen=True)
class StepResult:
    """What one optimizer update came to, equal on every rank.

    Attributes:
        loss_sum: Weighted sum of the per-element losses of the global batch.
        weight_sum: Sum of the weights.
        num_samples: Samples of the global batch.
        grad_norm: Global 2-norm of the reduced, normalised gradient before clipping.
        stop_votes: Ranks that want to stop.
        end_votes: Ranks whose stream has ended.
        save_votes: Ranks that want a checkpoint.
        grad_norms: Norm of each tensor's reduced gradient by neutral name; empty unless the run is traced.
        num_shares: Ranks whose share of the global batch is not empty.
        share_norms: Over ranks, the sum of the squared 2-norm of the gradient of the rank's weighted sum of losses,
            divided by its samples; 0 unless the run estimates the noise scale.
    """

    loss_sum: float
    weight_sum: float
    num_samples: int
    grad_norm: float
    stop_votes: int
    end_votes: int
    save_votes: int = 0
    grad_norms: Mapping[str, float] = field(default_factory=dict)
    num_shares: int = 0
    share_norms: float = 0.0

    @classmethod
    def from_sums(
        cls, sums: Sequence[float], grad_norm: float, grad_norms: Mapping[str, float] | None = None
    ) -> StepResult:
        """Read the reduced step tensor."""
        loss_sum, weight_sum, num_samples, _, *counts, share_norms = sums[: len(STEP_FIELDS)]
        stop_votes, end_votes, save_votes, num_shares = map(round, counts)
        votes = (stop_votes, end_votes, save_votes)
        return cls(
            loss_sum, weight_sum, round(num_samples), grad_norm, *votes, grad_norms or {}, num_shares, share_norms
        )

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient are finite; when not, the update was not applied."""
        return math.isfinite(self.loss_sum) and math.isfinite(self.grad_norm)


def clip_factor(grad_norm: float, clip_norm: float | None) -> float:
    """Return what the gradient is multiplied by so that its norm stays below ``clip_norm``.

    ``min(1, clip_norm / (norm + 1e-6))``, as ``torch.nn.utils.clip_grad_norm_`` has it (Pascanu et al. 2013,
    arXiv:1211.5063).
    """
    return 1.0 if clip_norm is None else min(1.0, clip_norm / (grad_norm + 1e-6))
