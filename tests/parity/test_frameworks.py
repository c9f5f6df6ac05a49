"""PyTorch and TensorFlow walk the same curve from the same weights, with every canonical optimizer."""

from __future__ import annotations

import numpy as np
import pytest

from hvdtrain.compare import compare_runs
from hvdtrain.finished_run import Run
from tests.parity.runs import JOBS, OPTIMIZERS


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("job", JOBS)
def test_frameworks_from_one_initialisation_walk_the_same_curve(runs, job, optimizer) -> None:
    torch, tensorflow = (runs(framework, 1, f"{job}/{optimizer}") for framework in ("torch", "tensorflow"))
    result = compare_runs(torch, tensorflow, rtol=1e-5)
    figures = f"loss {result.loss:.1e}, grad norm {result.grad_norm:.1e}, weights {result.weights:.1e}"
    print(f"parity: {job} {optimizer}: {figures}; apart: {result.noise or 'none'}")
    assert result.num_rows == 200
    assert max(row["samples_seen"] for row in torch.rows.values()) % torch.rows[min(torch.rows)]["samples_seen"]
    assert result.first_fault is None, result.first_fault
    assert result.loss <= 1e-5
    assert result.weights <= 1e-4
    assert _loss_fell(torch)


def test_frameworks_with_another_optimizer_are_told_apart(runs) -> None:
    torch, tensorflow = runs("torch", 1, "digits/adam"), runs("tensorflow", 1, "digits/adamw")
    result = compare_runs(torch, tensorflow, rtol=1e-5)
    assert result.first_fault is not None
    assert result.weights > 1e-4


def _loss_fell(run: Run) -> bool:
    losses = [row["loss"] for row in run.rows.values()]
    return bool(np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10]))
