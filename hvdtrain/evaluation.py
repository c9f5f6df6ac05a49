"""One evaluation: every sample of the data set counted exactly once, over all ranks."""

from __future__ import annotations

import time
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from hvdtrain.batching import cut_micro_batches, share_bounds
from hvdtrain.data import Collate, IndexedData, Loader
from hvdtrain.ledger import Ledger
from hvdtrain.metrics import Meter

if TYPE_CHECKING:
    from hvdtrain.communicator import Communicator
    from hvdtrain.signals import StopSignals
    from hvdtrain.trainer import Trainer

_VOTE_EVERY_S = 0.5


class Evaluator:
    """Evaluates one data set, each rank a contiguous part of it, which may be empty."""

    def __init__(self, data: IndexedData, *, collate: Collate | None, workers: int) -> None:
        """Keep the data set."""
        self._num_samples = len(data)
        self._loader = Loader(data, collate=collate, workers=workers)
        #: Samples of the last evaluation used once, more than once, never.
        self.ledger: dict[str, int | None] | None = None

    def run(
        self, trainer: Trainer, metric_names: tuple[str, ...], batch_size: int, signals: StopSignals
    ) -> dict[str, float | None] | None:
        """Return the mean of each metric over all samples of all ranks, ``None`` when a signal cut it short.

        Every rank must call.
        """
        topology, communicator = trainer.topology, trainer.communicator
        meter, ledger = Meter(metric_names), Ledger(self._num_samples)
        start, stop = share_bounds(self._num_samples, rank=topology.rank, size=topology.size)
        parts = cut_micro_batches(np.arange(start, stop), batch_size=batch_size)
        # Shares differ in size, and ranks vote equally often: as often as the largest share, the root's, has batches.
        _, largest = share_bounds(self._num_samples, rank=0, size=topology.size)
        votes = _Votes(communicator, signals)
        with closing(self._loader.iter_steps([[part] for part in parts], epoch=0)) as steps:
            for _ in range(-(-largest // batch_size)):
                for (batch,) in islice(steps, 1):
                    assert batch.rows is not None
                    ledger.add(batch.rows)
                    meter.add(trainer.eval_step(trainer.make_batch(batch)))
                    trainer.position.moved()
                if votes.is_stopped():
                    return None
        meter.reduce(communicator.allreduce_sum)
        self.ledger = ledger.close(np.arange(self._num_samples), communicator.allreduce_sum)
        return meter.means()


class _Votes:
    """Asks all ranks for signals about every half second, counted in rounds because clocks differ between ranks."""

    def __init__(self, communicator: Communicator, signals: StopSignals) -> None:
        self._communicator, self._signals = communicator, signals
        self._began, self._round, self._next = time.monotonic(), 0, 1

    def is_stopped(self) -> bool:
        """Return, after each round, whether any rank got a signal; equal on all ranks."""
        self._round += 1
        if self._round < self._next:
            return False
        mine = np.array([self._signals.number, time.monotonic() - self._began])
        number, elapsed_s = self._communicator.maximum(mine)
        self._next = self._round + max(1, int(_VOTE_EVERY_S * self._round / max(elapsed_s, 1e-3)))
        return bool(number)
