"""What summing the gradients over ranks costs, and how much of it the backward pass could hide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdtrain.forecast.line import Line

#: Of a pass, the part that is the backward one: two products of matrices for each one of the forward pass.
_BACKWARD = 2 / 3

#: Seconds per byte of a network so fast that nothing was seen of it.
_LEAST_S = 1e-15


@dataclass(frozen=True)
class Network:
    """What connects two ranks.

    Attributes:
        bandwidth: Bytes per second, one way.
        latency_s: Seconds until a message arrives, however short.
        is_measured: Whether it was measured here, or given.
    """

    bandwidth: float
    latency_s: float
    is_measured: bool


def ring_seconds(num_ranks: int, num_bytes: float, network: Network) -> float:
    """Return the time in which a ring sums ``num_bytes`` over ranks, 0 for one rank.

    ``2 (N - 1) / N * bytes / bandwidth + 2 (N - 1) * latency``: a rank sends ``2 (N - 1)`` messages of ``bytes / N``.
    The first term is the least that any algorithm needs (Patarasu and Yuan 2009,
    doi:10.1016/j.jpdc.2008.09.002); the second is the ring's (Thakur et al. 2005, doi:10.1177/1094342005051521).

    Example:
        >>> ring_seconds(4, 100e6, Network(1e9, 20e-6, False))  # 6 messages of 25 MB
        0.15012
    """
    messages = 2 * (num_ranks - 1)
    return messages / num_ranks * num_bytes / network.bandwidth + messages * network.latency_s


def fit_network(alone_s: float, together: Sequence[tuple[int, float]]) -> Network:
    """Return the network that explains what reductions on two ranks take beyond Horovod's cycle.

    For two ranks the bound of :func:`ring_seconds` is ``bytes / bandwidth + 2 * latency``. Horovod's copies into and
    out of its buffer count as communication, because one rank alone makes none.

    Args:
        alone_s: Reducing nearly nothing on one rank, which a step of one rank does too: the cycle.
        together: Bytes and seconds of reductions on two ranks, smallest first.
    """
    extra = [(float(num_bytes), seconds - alone_s) for num_bytes, seconds in together]
    line = Line.through(extra, [seconds for _, seconds in together])  # a measurement is off by a part of itself
    return Network(1 / max(line.slope, _LEAST_S), max(line.base, 0.0) / 2, is_measured=True)


def exposed_seconds(communication_s: float, pass_s: float, *, overlaps: bool) -> float:
    """Return the part of the communication in which ranks do nothing else.

    Args:
        communication_s: Of one update.
        pass_s: Forward and backward of the last micro-batch, whose gradients are the ones that are sent.
        overlaps: Whether a gradient is sent while those of earlier layers are computed (Li et al. 2020,
            arXiv:2006.15704). All but the last piece can hide behind the backward pass, so this is the best case.
    """
    return max(communication_s - _BACKWARD * pass_s, 0.0) if overlaps else communication_s
