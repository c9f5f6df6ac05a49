"""Where the time of a step goes: by phase, and who waits for whom."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdtrain.memory import peak_bytes
from hvdtrain.position import Phase, Position

if TYPE_CHECKING:
    from hvdtrain.communicator import Communicator

#: Phases that make up a step; evaluations and saves are between steps.
_PHASES: tuple[Phase, ...] = ("data", "forward and backward", "reduce", "update", "callback")


#: Of more ranks those are listed that the others wait for the most, and the one that held the most memory.
_MAX_RANKS = 256


class StepSplit:
    """Time of each phase since the first step, which also traces and allocates and so is left out."""

    def __init__(self, position: Position) -> None:
        """Read the seconds of ``position``."""
        self._position = position
        self._num_steps = 0
        self._before = [0.0] * len(_PHASES)

    def step_done(self) -> None:
        """Count one step."""
        if self._num_steps == 0:
            self._before = self._now()
        self._num_steps += 1

    def gather(self, communicator: Communicator) -> dict[str, Any]:
        """Return ``split``, ms a step by part, and ``ranks``, times and most memory held by rank; every rank must call.

        The rank that reaches the reduction last waits for nobody: its time there is ``communication``, and what
        others spend there beyond it is ``waiting``. In TensorFlow the update is part of the same compiled function.
        """
        steps = max(self._num_steps - 1, 1)
        mine = [1e3 * (now - before) / steps for now, before in zip(self._now(), self._before, strict=True)]
        told = communicator.all_gather((socket.gethostname(), mine, peak_bytes()))
        times = np.array([row for _, row, _ in told])
        reduce = times[:, _PHASES.index("reduce")]
        means = dict(zip(_PHASES, times.mean(axis=0).tolist(), strict=True))
        split = {
            "data": means["data"],
            "forward and backward": means["forward and backward"],
            "communication": float(reduce.min()),
            "waiting": float((reduce - reduce.min()).mean()),
            "update": means["update"],
            "callbacks": means["callback"],
        }
        ranks = [
            {
                "rank": rank,
                "host": host,
                "compute_ms": row[_PHASES.index("forward and backward")],
                "wait_ms": wait,
                "memory_bytes": peak,
            }
            for rank, ((host, row, peak), wait) in enumerate(zip(told, (reduce - reduce.min()).tolist(), strict=True))
        ]
        return {"split": split, "ranks": _listed(ranks)}

    def _now(self) -> list[float]:
        return [self._position.seconds[phase] for phase in _PHASES]


def _listed(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    largest = max(ranks, key=lambda entry: entry["memory_bytes"])
    others = sorted((entry for entry in ranks if entry is not largest), key=lambda entry: entry["wait_ms"])
    return sorted([largest, *others[: _MAX_RANKS - 1]], key=lambda entry: entry["rank"])
