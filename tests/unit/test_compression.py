from __future__ import annotations

import numpy as np

from hvdtrain.compression import MAX_EXPONENT, SUM_EXPONENT

LARGEST = float(np.finfo(np.float16).max)


def test_sum_that_rounds_up_at_each_of_2800_ranks_stays_in_range():
    for num_ranks, stays in ((2800, True), (2900, False)):
        assert (2**SUM_EXPONENT * (1 + 2.0**-11) ** num_ranks < LARGEST) is stays


def test_largest_scale_times_a_gradient_that_it_is_for_is_a_float32():
    scale = np.float32(2.0**MAX_EXPONENT)
    assert np.isfinite(scale * np.float32(2.0 ** (SUM_EXPONENT - MAX_EXPONENT)))
    assert 1 / scale > np.finfo(np.float32).tiny


def test_elements_down_to_a_part_of_the_bound_keep_eleven_bits():
    scaled = np.float32(2.0 ** (SUM_EXPONENT - 28) * (1 + 2.0**-10))
    assert np.float16(scaled) == scaled
    assert np.float16(scaled / 2) != scaled / 2
