"""Evaluation modes, on two real ranks in each framework."""

from __future__ import annotations

import pytest

from tests.harness import require, run_ranks
from tests.parallel.commands import FRAMEWORKS, TIMEOUT_S


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_evaluation_modes_hold_on_two_ranks(framework):
    require(framework)
    run_ranks(
        "tests/parallel/ranked/test_evaluation_modes.py",
        num_ranks=2,
        timeout_s=TIMEOUT_S,
        args=("--adapter", framework),
        env={"OMP_NUM_THREADS": "2"},
    )
