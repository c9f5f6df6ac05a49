"""Any number of ranks makes the run of one process, and the same number makes the same bits again."""

from __future__ import annotations

import numpy as np
import pytest

from hvdtrain.compare import compare_runs
from tests.parity.conftest import RANKED, SIZES


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("name", RANKED)
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_ranks_stay_within_three_times_the_floor_of_one_process(runs, framework, name, size) -> None:
    one, many = runs(framework, 1, name), runs(framework, size, name)
    floor = compare_runs(one, runs(framework, 1, f"{name}/other-order"), rtol=1e-5)
    result = compare_runs(one, many, rtol=1e-5)
    print(
        f"ranks: {framework} {name} x {size}: loss {result.loss:.1e} (floor {floor.loss:.1e}), "
        f"weights {result.weights:.1e} (floor {floor.weights:.1e})"
    )
    assert many.size == size
    assert floor.loss > 0, "the other order must really sum in another order"
    assert result.first_fault is None, result.first_fault
    assert result.loss <= 3 * max(floor.loss, 5e-6)
    assert result.weights <= 3 * max(floor.weights, 1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_repeated_run_with_random_delays_gives_the_same_bits(runs, framework, size) -> None:
    once, again = runs(framework, size, "digits/adam/once"), runs(framework, size, "digits/adam/again")
    assert once.weights.keys() == again.weights.keys()
    for name, array in once.weights.items():
        assert np.array_equal(array.view(np.uint32), again.weights[name].view(np.uint32)), name
