"""Accumulation: so many passes, one reduction; and the memory of one pass. Counted on two real ranks."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hvdtrain.checkpoint import load
from tests.harness import require
from tests.parallel.commands import FRAMEWORKS, require_success, train

PASSES, BATCH_SIZE = 8, 16
#: What eight passes may hold beyond one: the sum of gradients beside those of a pass, inputs, and noise. The
#: activations of seven more passes would be 200 MiB in PyTorch and 350 in TensorFlow.
MARGIN_BYTES = 64 << 20


@dataclass(frozen=True)
class Counted:
    """What a run has reduced and held."""

    reduced_bytes: int
    most_bytes: int
    num_values: int


def run(framework: str, folder: Path, passes: int) -> Counted:
    """Train the smallest GPT on the same few samples, in updates of so many passes."""
    timeline, run_dir = folder / f"timeline-{passes}.json", folder / f"run-{passes}"
    sizes = {"--batch-size": BATCH_SIZE, "--global-batch-size": 2 * BATCH_SIZE * passes}
    steps = {"--max-steps": PASSES // passes, "--framework": framework, "--run-dir": run_dir}
    words = [str(word) for pair in {**sizes, **steps}.items() for word in pair]
    require_success(train("gpt.py", *words, num_ranks=2, env={"HOROVOD_TIMELINE": str(timeline)}))
    summary = json.loads((run_dir / "summary.json").read_text())
    weights = load(next((run_dir / "checkpoints").iterdir())).state.weights
    return Counted(
        reduced_bytes(timeline),
        max(rank["memory_bytes"] for rank in summary["ranks"]),
        sum(array.size for array in weights.values()),
    )


def reduced_bytes(timeline: Path) -> int:
    """Return the bytes of all tensors that one rank gave into a sum, as Horovod wrote them down."""
    total, summed = 0, set()
    for event in json.loads(timeline.read_text()):
        told = event.get("args") or {}
        if event.get("ph") == "B" and event.get("name") == "ALLREDUCE":
            summed.add(event["pid"])
        elif event.get("ph") == "E" and event["pid"] in summed and "shape" in told:
            total += np.dtype(told["dtype"]).itemsize * math.prod(json.loads(told["shape"]))
    return total


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_eight_passes_reduce_an_eighth_of_the_bytes_and_hold_the_memory_of_one(framework, tmp_path):
    require(framework)
    one, eight = (run(framework, tmp_path, passes) for passes in (1, PASSES))
    print(framework, one, eight)
    assert one.reduced_bytes == PASSES * eight.reduced_bytes
    # Every value once in the one update, beside the step tensor.
    assert 0 <= eight.reduced_bytes - 4 * eight.num_values < 4096
    assert eight.most_bytes - one.most_bytes < MARGIN_BYTES
