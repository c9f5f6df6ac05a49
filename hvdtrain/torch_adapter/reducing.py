"""The ranks that time Horovod's sum in PyTorch: ``hvdtrain launch -- python -m hvdtrain.torch_adapter.reducing``."""

from __future__ import annotations

from collections.abc import Callable

import horovod.torch as hvd
import torch

from hvdtrain.communicator import connect
from hvdtrain.forecast.reducing import tell_reducing


def make_reduce(num_values: int) -> Callable[[], object]:
    """Return what sums ``num_values`` float32 values over ranks, as one group."""
    values = [torch.zeros(num_values // 2), torch.zeros(num_values - num_values // 2)]
    return lambda: hvd.grouped_allreduce_(values, op=hvd.Sum, name=f"reducing.{num_values}")


if __name__ == "__main__":
    communicator = connect()
    hvd.init()
    tell_reducing(communicator, make_reduce)
