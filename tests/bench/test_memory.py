"""The memory of a rank beside that of a loop that somebody wrote for one process."""

from __future__ import annotations

import pytest

from hvdtrain.settings import FOR_HOROVOD_ON_CPU
from tests.bench.peers import Case, memory_of
from tests.harness import require
from tests.parallel.commands import FRAMEWORKS

#: Of the loop for one process. TensorFlow is above a tenth: the sums lie beside a rank's own gradients, and compiling
#: the update takes memory. Its limit guards what was reached.
MOST = {"torch": 1.10, "tensorflow": 1.25}
#: Horovod sums small gradients in a buffer of its own.
FUSION_BYTES = int(FOR_HOROVOD_ON_CPU["HOROVOD_FUSION_THRESHOLD"])
#: Weights and the two moments of AdamW in the ``small`` GPT of 3.3 M parameters, which the root copies to save them.
STAGED_BYTES = 3 * 4 * 3_300_000


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_rank_holds_little_more_than_one_process_beside_buffers(framework):
    require(framework)
    case = Case(framework, "gpt", "small", 1, warm_up=1, num_steps=3)
    (one,), ours = memory_of(case, "one"), memory_of(case, "ours")
    print(f"{framework}: one process {one >> 20} MiB, ranks {[held >> 20 for held in ours]} MiB")
    assert len(ours) == 2
    limits = [MOST[framework] * one + FUSION_BYTES + staged for staged in (STAGED_BYTES, 0)]
    assert all(held < limit for held, limit in zip(ours, limits, strict=True)), (one, ours)
    assert min(ours) > 100 << 20
