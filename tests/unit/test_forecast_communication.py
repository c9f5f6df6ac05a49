from __future__ import annotations

import pytest

from hvdtrain.forecast.communication import Network, exposed_seconds, fit_network, ring_seconds
from hvdtrain.forecast.line import Line

NETWORK = Network(bandwidth=1e9, latency_s=20e-6, is_measured=False)


@pytest.mark.parametrize(
    ("num_ranks", "seconds"),
    [
        (1, 0.0),
        (2, 2 / 2 * 0.1 + 2 * 20e-6),  # 2 messages of 50 MB
        (4, 6 / 4 * 0.1 + 6 * 20e-6),  # 6 messages of 25 MB
        (100, 1.98 * 0.1 + 198 * 20e-6),
    ],
)
def test_ring_bound_is_that_worked_out_by_hand(num_ranks, seconds):
    assert ring_seconds(num_ranks, 100e6, NETWORK) == pytest.approx(seconds, rel=1e-12)


def test_what_the_backward_pass_can_hide():
    # Of 30 ms for a pass 20 are the backward one.
    assert exposed_seconds(0.050, 0.030, overlaps=False) == 0.050
    assert exposed_seconds(0.050, 0.030, overlaps=True) == pytest.approx(0.030)
    assert exposed_seconds(0.010, 0.030, overlaps=True) == 0.0


def test_network_is_found_again_from_what_it_would_take():
    together = [(size, 1e-3 + ring_seconds(2, size, NETWORK)) for size in (1000, 1_000_000, 30_000_000)]
    found = fit_network(1e-3, together)
    assert (found.bandwidth, found.latency_s) == pytest.approx((1e9, 20e-6))
    assert found.is_measured


def test_two_ranks_as_fast_as_one_are_an_endless_bandwidth_and_no_error():
    found = fit_network(2e-3, [(1000, 1e-3), (1_000_000, 1e-3)])
    assert (found.bandwidth, found.latency_s) == (pytest.approx(1e15), 0.0)


def test_line_goes_through_its_points():
    assert Line.through([(16, 130.0), (32, 160.0)]) == Line(100.0, 1.875)
    assert Line.through([(16, 130.0), (32, 160.0)]).at(64) == 220.0
    # Least squares: residuals 1, -2 and 1 of the line through (0, 0), (1, 3), (2, 0).
    assert Line.through([(1, 1.0), (2, 4.0), (3, 1.0)]) == Line(2.0, 0.0)


@pytest.mark.parametrize(
    ("points", "line"),
    [
        ([(2, 7.0)], Line(7.0, 0.0)),
        ([(1, 5.0), (2, 3.0)], Line(4.0, 0.0)),  # nothing shrinks with its samples
        ([(1, 1.0), (2, 4.0)], Line(0.0, 9 / 5)),  # through 0: (1 + 8) / (1 + 4)
    ],
)
def test_line_has_no_negative_part(points, line):
    found = Line.through(points)
    assert (found.base, found.slope) == pytest.approx((line.base, line.slope))


def test_points_that_are_known_better_count_more():
    points = [(1.0, 0.001), (1000.0, 1.3), (2000.0, 1.9)]
    plain, weighted = Line.through(points), Line.through(points, errors=[0.001, 1.3, 1.9])
    assert abs(weighted.at(1.0) / 0.001 - 1) < 0.1 < abs(plain.at(1.0) / 0.001 - 1)


def test_a_small_message_that_seems_to_cost_nothing_does_not_hide_what_large_ones_cost():
    found = fit_network(1.0e-3, [(1000, 0.9e-3), (1_000_000, 2e-3), (30_000_000, 31e-3)])
    assert found.bandwidth == pytest.approx(1e9, rel=0.1)


def test_line_reaches_a_limit():
    assert Line(100.0, 2.0).largest_below(150.0) == 25.0
    assert Line(100.0, 2.0).largest_below(90.0) < 0
    assert Line(100.0, 0.0).largest_below(150.0) == float("inf")
    assert Line(100.0, 0.0).largest_below(90.0) < 0
