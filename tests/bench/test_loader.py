"""The loader alone delivers far more than training takes, so that it is never what a step waits for."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from hvdtrain.data import Loader
from hvdtrain.job import load_job
from hvdtrain.job_options import GivenOptions
from tests.harness import require
from tests.parallel.commands import FRAMEWORKS, PROJECT, require_success, train

DIGITS = PROJECT / "examples" / "digits.py"
LEAST = 20
NUM_RANKS = 2


def loaded_per_s(data, batch_size: int) -> float:
    """Return the samples per second of one loader, which serves one rank."""
    rng, num_steps = np.random.default_rng(0), 500
    steps = [[rng.permutation(len(data))[:batch_size]] for _ in range(num_steps)]
    began = time.perf_counter()
    count = sum(b.num_samples for step in Loader(data).iter_steps(steps, epoch=1) for b in step)
    return count / (time.perf_counter() - began)


@pytest.mark.alone
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_loader_alone_delivers_twenty_times_what_two_ranks_train(framework, tmp_path):
    require(framework)
    options = ("--framework", framework, "--run-dir", str(tmp_path / "run"), "--epochs", "4")
    require_success(train(DIGITS, *options, num_ranks=NUM_RANKS))
    trained = json.loads((tmp_path / "run" / "summary.json").read_text())["samples_per_s"]
    data = load_job(DIGITS, GivenOptions({})).required("train_data")()
    loaded = max(loaded_per_s(data, 64 // NUM_RANKS) for _ in range(3))
    print(f"{framework}: {loaded:,.0f} samples/s loaded, {trained:,.0f} trained")
    assert loaded > LEAST * trained
