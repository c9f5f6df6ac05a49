"""One evaluation: every sample of the data set counted exactly once, over all ranks."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from hvdtrain.batching import cut_micro_batches, share_bounds
from hvdtrain.data import Collate, IndexedData, Loader
from hvdtrain.ledger import Ledger
from hvdtrain.metrics import Meter

if TYPE_CHECKING:
    from hvdtrain.trainer import Trainer


class Evaluator:
    """Evaluates one data set, each rank a contiguous part of it, which may be empty."""

    def __init__(self, data: IndexedData, *, collate: Collate | None, workers: int) -> None:
        """Keep the data set."""
        self._num_samples = len(data)
        self._loader = Loader(data, collate=collate, workers=workers)
        #: Samples of the last evaluation used once, more than once, never.
        self.ledger: dict[str, int | None] | None = None

    def run(self, trainer: Trainer, metric_names: tuple[str, ...], batch_size: int) -> dict[str, float | None]:
        """Return the mean of each metric over all samples of all ranks; every rank must call."""
        topology, allreduce_sum = trainer.topology, trainer.communicator.allreduce_sum
        meter, ledger = Meter(metric_names), Ledger(self._num_samples)
        start, stop = share_bounds(self._num_samples, rank=topology.rank, size=topology.size)
        parts = cut_micro_batches(np.arange(start, stop), batch_size=batch_size)
        with closing(self._loader.iter_steps([[part] for part in parts], epoch=0)) as steps:
            for (batch,) in steps:
                assert batch.rows is not None
                ledger.add(batch.rows)
                meter.add(trainer.eval_step(trainer.make_batch(batch)))
        meter.reduce(allreduce_sum)
        self.ledger = ledger.close(np.arange(self._num_samples), allreduce_sum)
        return meter.means()
