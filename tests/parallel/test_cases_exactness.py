"""Exactness on real ranks: all cases of a framework in one launch per number of ranks."""

from __future__ import annotations

import re

import pytest

from tests.harness import mpirun, require, run_ranks
from tests.parallel.commands import FRAMEWORKS, JOBS, TIMEOUT_S, limited

RANKED = "tests/parallel/ranked"


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_exactness_cases_have_their_values(framework, num_ranks):
    require(framework)
    run_ranks(
        f"{RANKED}/test_exactness.py",
        num_ranks=num_ranks,
        timeout_s=TIMEOUT_S,
        args=("--adapter", framework, f"{RANKED}/test_exactness_{framework}.py"),
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_parameter_unfrozen_in_fit_ends_two_ranks_with_one_message(framework):
    require(framework)
    finished = mpirun(2, "python", str(JOBS / "unfreezes.py"), framework, **limited({}))
    told = [line for line in finished.stderr.splitlines() if line.startswith("hvdtrain: error: ")]
    assert [re.sub(r" \[rank [01] of 2\]$", "", line) for line in told] == [
        "hvdtrain: error: train_step: the parameters that train must stay the same during fit, got unfrozen: "
        "['head.weight'], frozen: none. Freeze before fit, and call fit again after a change."
    ], finished.output
    assert "Traceback" not in finished.output
    assert finished.returncode == 2
