from __future__ import annotations

import math

import numpy as np
import pytest

from hvdtrain.noise_scale import NoiseScale, doubling, moments
from hvdtrain.step import StepResult

#: Shares of four ranks: unequal, and one empty.
SHARES = (5, 5, 4, 0)


def result_of(gradients, shares, *, weight=1.0):
    """Return the result of an update from each rank's sum of gradients, in which every element has this weight."""
    n = sum(shares)
    norms = sum(weight**2 * (g @ g) / count for g, count in zip(gradients, shares, strict=True) if count)
    norm = float(np.linalg.norm(np.sum(gradients, axis=0))) / n
    num_shares = sum(count > 0 for count in shares)
    return StepResult(0.0, weight * n, n, norm, 0, 0, num_shares=num_shares, share_norms=float(norms))


class Problem:
    """Gradients with mean ``gradient`` and independent entries of the variances ``noise`` around it."""

    def __init__(self, dimension=60, noise_scale=40.0):
        rng = np.random.default_rng(1)
        self.gradient = rng.normal(size=dimension)
        noise = rng.uniform(0.1, 2.0, size=dimension)
        self.noise = noise * noise_scale * (self.gradient @ self.gradient) / noise.sum()
        self.truth = self.gradient @ self.gradient, self.noise.sum()
        self._rng = np.random.default_rng(2)

    def step(self, shares):
        """Return the result of an update with these shares; a sum of samples is drawn at once."""
        drawn = self._rng.normal(size=(len(shares), len(self.gradient)))
        counts = np.array(shares)[:, None]
        return result_of(counts * self.gradient + np.sqrt(counts * self.noise) * drawn, shares)


# ---------------------------------------------------------------- one update
def test_moments_worked_out_by_hand():
    # Means 1.5 of two samples, 4 of one and 7/3 of all: tr = 2 * 2.25 + 16 - 3 * 49/9, |G|^2 = 49/9 - tr/3.
    found = moments(result_of(np.array([[3.0], [4.0]]), (2, 1)))
    assert found == (pytest.approx(73 / 18), pytest.approx(25 / 6))


def test_moments_of_equal_shares_are_those_of_the_paper():
    gradients = np.random.default_rng(0).normal(size=(3, 5))
    small, big = 4, 12
    small_sq = np.mean([(g / small) @ (g / small) for g in gradients])
    big_sq = float(np.sum((gradients.sum(axis=0) / big) ** 2))
    grad_sq = (big * big_sq - small * small_sq) / (big - small)
    noise = (small_sq - big_sq) / (1 / small - 1 / big)
    assert moments(result_of(gradients, (4, 4, 4))) == (pytest.approx(grad_sq), pytest.approx(noise))


def test_one_weight_for_all_elements_changes_nothing():
    gradients = np.random.default_rng(0).normal(size=(3, 5))
    plain, weighted = (moments(result_of(gradients, (4, 3, 3), weight=weight)) for weight in (1.0, 7.0))
    assert weighted == pytest.approx(plain)


@pytest.mark.parametrize(
    "changed",
    [
        {"num_shares": 1},
        {"num_shares": 0},
        {"weight_sum": 0.0},
        {"loss_sum": math.nan},
        {"grad_norm": math.inf},
        {"share_norms": math.inf},
    ],
)
def test_update_that_tells_nothing_is_left_out(changed):
    fields = {"loss_sum": 0.0, "weight_sum": 4.0, "num_samples": 4, "grad_norm": 2.0, "stop_votes": 0, "end_votes": 0}
    sound = {**fields, "num_shares": 2, "share_norms": 20.0}
    assert moments(StepResult(**sound)) == (3.0, 4.0)
    spoilt = StepResult(**{**sound, **changed})
    assert moments(spoilt) is None
    scale = NoiseScale()
    scale.add(StepResult(**sound))
    before = scale.state()
    scale.add(spoilt)
    assert scale.state() == before


@pytest.mark.parametrize("shares", [(8, 8), SHARES, (1,) * 16, (2, 1)])
def test_moments_are_unbiased_whatever_the_shares(shares):
    problem = Problem()
    found = np.array([moments(problem.step(shares)) for _ in range(4000)])
    errors = found.std(axis=0) / math.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - problem.truth) < 4 * errors).all()
    assert (errors < 0.08 * np.array(problem.truth)).all()


def test_shares_taken_as_equal_would_be_biased():
    problem, shares = Problem(), (12, 2)
    right, wrong = [], []
    for _ in range(4000):
        result = problem.step(shares)
        right.append(moments(result))
        # The mean of the squared norms of both shares' means, as if each had seven samples.
        drawn = problem.step((2,)).grad_norm ** 2, problem.step((12,)).grad_norm ** 2
        wrong.append((np.mean(drawn) - result.grad_norm**2) / (1 / 7 - 1 / 14))
    assert np.mean(right, axis=0)[1] == pytest.approx(problem.truth[1], rel=0.02)
    assert np.mean(wrong) > 1.5 * problem.truth[1]


# ---------------------------------------------------------------- over updates
@pytest.mark.parametrize("noise_scale", [4.0, 40.0])
@pytest.mark.parametrize("shares", [(8, 8), SHARES])
def test_estimate_comes_within_a_quarter_of_the_truth_and_its_mean_within_a_twentieth(noise_scale, shares):
    problem, scale, seen = Problem(noise_scale=noise_scale), NoiseScale(), []
    for step in range(4000):
        scale.add(problem.step(shares))
        if step >= 500:
            seen.append(scale.value)
    assert seen[-1] == pytest.approx(noise_scale, rel=0.25)
    assert np.mean(seen) == pytest.approx(noise_scale, rel=0.05)


def test_mean_of_ratios_would_be_no_estimate():
    problem = Problem()
    found = [moments(problem.step((8, 8))) for _ in range(4000)]
    assert abs(np.mean([noise / grad_sq for grad_sq, noise in found]) - 40.0) > 10.0


def test_estimate_follows_a_gradient_that_shrinks():
    early, late, scale = Problem(noise_scale=4.0), Problem(noise_scale=400.0), NoiseScale()
    for _ in range(300):
        scale.add(early.step((50, 50)))
    before = scale.value
    for _ in range(1000):
        scale.add(late.step((500, 500)))
    assert (before, scale.value) == (pytest.approx(4.0, rel=0.2), pytest.approx(400.0, rel=0.2))


def test_nothing_is_known_before_the_first_update():
    assert NoiseScale().value is None


def test_gradient_below_its_noise_gives_no_number():
    scale = NoiseScale()
    scale.add(result_of(np.array([[3.0], [-3.0]]), (1, 1)))
    assert scale.value is None
    assert set(scale.facts(8).values()) == {None}


def test_equal_samples_have_no_noise():
    scale = NoiseScale()
    scale.add(result_of(np.array([[2.0], [1.0]]), (2, 1)))
    assert scale.value == pytest.approx(0.0, abs=1e-12)
    assert scale.facts(8)["largest_useful_batch"] == 1


def test_restored_scale_goes_on_where_the_saved_one_stood():
    problem = Problem()
    whole, first, second = NoiseScale(), NoiseScale(), NoiseScale()
    results = [problem.step(shares) for shares in ((8, 8), (8, 8), (6, 5, 5), (6, 5, 5))]  # on from two ranks to three
    for result in results:
        whole.add(result)
    for result in results[:2]:
        first.add(result)
    second.restore(first.state())
    for result in results[2:]:
        second.add(result)
    assert second.value == whole.value
    assert second.value is not None


# ---------------------------------------------------------------- what it says
def test_facts_tell_the_largest_useful_batch_and_what_doubling_is_worth():
    scale = NoiseScale()
    scale.restore([2.0, 97.0])
    assert scale.facts(16) == {
        "noise_scale": 48.5,
        "largest_useful_batch": 48,
        "doubling_saves_steps": pytest.approx(48.5 / 129),
        "doubling_adds_samples": pytest.approx(16 / 64.5),
    }


@pytest.mark.parametrize("scale", [0.0, 3.0, 64.0, 1e6])
@pytest.mark.parametrize("batch", [1, 64, 4096])
def test_doubling_follows_from_the_costs_of_both_batches(scale, batch):
    def steps(size):
        return 1 + scale / size

    def samples(size):
        return scale + size

    saved, added = doubling(scale, batch)
    assert saved == pytest.approx(1 - steps(2 * batch) / steps(batch))
    assert added == pytest.approx(samples(2 * batch) / samples(batch) - 1)
