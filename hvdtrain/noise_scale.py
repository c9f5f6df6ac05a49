"""The gradient noise scale: how large a global batch still pays, from gradients that the ranks compute anyway.

McCandlish et al. 2018, arXiv:1812.06162. The gradient of one sample has the mean ``G`` and the covariance ``Sigma``;
``B_simple = tr(Sigma) / |G|^2`` is the number of samples at which the noise of a batch's gradient is as large as the
gradient itself. The paper gets both from the norms of a small and a large batch (appendix A.1); here the small ones
are the shares of the ranks and the large one is the global batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hvdtrain.step import StepResult

#: Weight of the past in the exponential means, per update: they look back over about 100 updates.
_DECAY = 0.99


def moments(result: StepResult) -> tuple[float, float] | None:
    """Return unbiased estimates of ``|G|^2`` and ``tr(Sigma)`` from one update; ``None`` where it tells nothing.

    With ``g_r`` the mean gradient of the ``n_r`` samples of rank r, ``g`` that of all ``n`` samples, and ``K`` ranks
    whose share is not empty, whatever the sizes of their shares::

        E |g_r|^2 = |G|^2 + tr(Sigma) / n_r        E |g|^2 = |G|^2 + tr(Sigma) / n
        tr(Sigma) = (sum_r n_r |g_r|^2  -  n |g|^2) / (K - 1)
        |G|^2     = |g|^2  -  tr(Sigma) / n

    For equal shares these are the estimates of appendix A.1 of arXiv:1812.06162. Either may come out negative in one
    update. Weights of elements are taken as if each sample had the mean one. Samples of an epoch are drawn without
    replacement, which lowers ``|G|^2`` by ``tr(Sigma)`` over the samples of the data set.

    Args:
        result: Its ``share_norms`` are filled; at least two shares are needed.
    """
    n, shares = result.num_samples, result.num_shares
    is_known = shares >= 2 and result.weight_sum != 0 and result.is_finite
    if not is_known or not math.isfinite(result.share_norms):
        return None
    batch_sq = result.grad_norm**2
    noise = (result.share_norms * (n / result.weight_sum) ** 2 - n * batch_sq) / (shares - 1)
    return batch_sq - noise / n, noise


class NoiseScale:
    """Exponential means of both estimates over updates, divided last: a mean of ratios would be biased.

    Example:
        >>> scale = NoiseScale()
        >>> scale.add(StepResult(0.0, 4.0, 4, 2.0, 0, 0, num_shares=2, share_norms=20.0))
        >>> scale.value  # |G|^2 = 3, tr(Sigma) = 4
        1.3333333333333333
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._grad_sq = self._noise = 0.0

    def add(self, result: StepResult) -> None:
        """Take one update into the means; one that tells nothing leaves them as they are."""
        found = moments(result)
        if found is not None:
            # Both start at zero, and what that takes from them cancels in the ratio.
            self._grad_sq, self._noise = (
                _DECAY * mean + (1 - _DECAY) * value
                for mean, value in zip((self._grad_sq, self._noise), found, strict=True)
            )

    @property
    def value(self) -> float | None:
        """``B_simple`` in samples, at least 0; ``None`` while the gradient cannot be told from its noise."""
        scale = max(self._noise, 0.0) / self._grad_sq if self._grad_sq > 0 else math.inf
        return scale if math.isfinite(scale) else None

    def state(self) -> list[float]:
        """Return what a checkpoint keeps; it does not depend on the number of ranks."""
        return [self._grad_sq, self._noise]

    def restore(self, state: Sequence[float]) -> None:
        """Take what :meth:`state` returned."""
        self._grad_sq, self._noise = state

    def facts(self, global_batch_size: int) -> dict[str, Any]:
        """Return what ``summary.json`` holds: the estimate in samples, and what it says of this global batch.

        ``largest_useful_batch`` is the estimate in whole samples, at least 1: there a run takes twice the fewest
        updates and twice the fewest samples that any batch could, and beyond it more samples buy few updates.
        ``doubling_saves_steps`` and ``doubling_adds_samples`` are parts of the updates and of the samples that a run
        to the same loss takes, see :func:`doubling`.
        """
        scale = self.value
        saved, added = (None, None) if scale is None else doubling(scale, global_batch_size)
        return {
            "noise_scale": scale,
            "largest_useful_batch": None if scale is None else max(round(scale), 1),
            "doubling_saves_steps": saved,
            "doubling_adds_samples": added,
        }


def doubling(noise_scale: float, global_batch_size: int) -> tuple[float, float]:
    """Return the part of updates that twice the batch saves and the part of samples that it adds, each from 0 to 1.

    A run to a given loss takes ``S = S_min (1 + B_noise / B)`` updates and ``E = E_min (1 + B / B_noise)`` samples, so
    that ``(S / S_min - 1) (E / E_min - 1) = 1`` (arXiv:1812.06162, section 2); the estimate stands for ``B_noise``.

    Args:
        noise_scale: In samples, at least 0.
        global_batch_size: ``B``, at least 1.

    Example:
        >>> doubling(64.0, 64), doubling(192.0, 64)
        ((0.25, 0.5), (0.375, 0.25))
    """
    both = noise_scale + global_batch_size
    return noise_scale / (2 * both), global_batch_size / both
