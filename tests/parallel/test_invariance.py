"""1, 2 and 3 ranks end with the same weights, and the comparison fails where broadcast or reduction is missing."""

from __future__ import annotations

import numpy as np
import pytest

from hvdtrain.checkpoint import load
from tests.harness import require, run_ranks
from tests.parallel.commands import FRAMEWORKS, TIMEOUT_S, read_summary, require_success, train
from tests.parallel.distance import TOLERANCE, largest_distance

LAST = "checkpoints/step-00000012"


@pytest.fixture(scope="module", params=FRAMEWORKS)
def runs(request, tmp_path_factory):
    """The framework, and the run folder of the same job by number of ranks."""
    framework = request.param
    require(framework)
    folder = tmp_path_factory.mktemp(framework)
    folders = {}
    for num_ranks in (1, 2, 3):
        folders[num_ranks] = folder / f"ranks-{num_ranks}"
        options = ("--framework", framework, "--run-dir", str(folders[num_ranks]))
        require_success(train("images.py", *options, num_ranks=num_ranks))
    return framework, folders


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_end_with_the_weights_of_one_process(runs, num_ranks):
    _, folders = runs
    one, many = load(folders[1] / LAST), load(folders[num_ranks] / LAST)
    assert read_summary(folders[1])["samples_seen"] == read_summary(folders[num_ranks])["samples_seen"] == 93
    assert largest_distance(many.state.weights, one.state.weights) <= TOLERANCE
    assert largest_distance(many.state.slots, one.state.slots) <= TOLERANCE


def test_training_moves_the_weights_far_beyond_the_tolerance(runs):
    _, folders = runs
    weights = load(folders[1] / LAST).state.weights
    slots = load(folders[1] / LAST).state.slots
    assert len(weights) == len(slots) == 4
    assert min(np.linalg.norm(values) for values in slots.values()) > 1000 * TOLERANCE


def test_without_broadcast_or_reduction_the_comparison_fails(runs):
    framework, folders = runs
    run_ranks(
        "tests/parallel/ranked/test_invariance_controls.py",
        num_ranks=2,
        timeout_s=TIMEOUT_S,
        args=("--adapter", framework),
        env={"HVDTRAIN_TEST_ONE_PROCESS": str(folders[1] / LAST)},
    )
