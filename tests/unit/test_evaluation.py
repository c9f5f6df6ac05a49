"""An evaluation counts every sample once, whatever the number of ranks and the size of batches."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from hvdtrain.evaluation import Evaluator
from hvdtrain.position import Position
from hvdtrain.signals import StopSignals
from hvdtrain.topology import Topology
from tests.unit.numpy_trainer import Samples


class Rank:
    """As much of a trainer as an evaluation asks for, on one of several ranks that are run one after another."""

    def __init__(self, rank=0, size=1):
        self.topology = Topology(rank=rank, size=size)
        self.communicator = SimpleNamespace(allreduce_sum=self.allreduce_sum, maximum=lambda values: values)
        self.position = Position()
        self.sums, self.others, self.batches = [], None, []

    def allreduce_sum(self, values):
        self.sums.append(values.copy())
        index = len(self.sums) - 1
        return values if self.others is None else np.sum([values, *(sums[index] for sums in self.others)], axis=0)

    def make_batch(self, micro_batch):
        self.batches.append(micro_batch.rows.tolist())
        return micro_batch.data

    def eval_step(self, batch):
        y = batch["y"].astype(np.float64)
        return {
            "loss": (float((batch["weight"] * y).sum()), float(batch["weight"].sum())),
            "twice": (2 * y.sum(), len(y)),
        }


def samples(num_samples):
    numbers = np.arange(num_samples)
    return Samples(np.zeros((num_samples, 2)), numbers, numbers % 3)


def evaluate(num_samples, size, batch_size, workers=0):
    """Return the result, the ledger and the batches of each rank."""
    data = samples(num_samples)
    first = [Rank(rank, size) for rank in range(size)]
    for trainer in first:
        Evaluator(data, collate=None, workers=workers).run(trainer, ("loss", "twice"), batch_size, StopSignals())
    answers = []
    for rank in range(size):
        trainer, evaluator = Rank(rank, size), Evaluator(data, collate=None, workers=workers)
        trainer.others = [other.sums for other in first if other.topology.rank != rank]
        answers.append(
            (evaluator.run(trainer, ("loss", "twice"), batch_size, StopSignals()), evaluator.ledger, trainer.batches)
        )
    return answers


@pytest.mark.parametrize("batch_size", [1, 2, 4, 7, 100])
@pytest.mark.parametrize("size", [1, 2, 3, 9])
@pytest.mark.parametrize("num_samples", [1, 2, 7, 10])
def test_evaluation_is_the_mean_over_all_samples_on_every_rank(num_samples, size, batch_size):
    y = np.arange(num_samples)
    weights = y % 3
    loss = (weights * y).sum() / weights.sum() if weights.sum() else None
    for means, ledger, batches in evaluate(num_samples, size, batch_size):
        assert means == {"loss": loss, "twice": 2 * y.mean()}
        assert ledger == {"once": num_samples, "more": 0, "never": 0}
        assert all(0 < len(batch) <= batch_size for batch in batches)


def test_ranks_take_contiguous_parts():
    batches = [answer[2] for answer in evaluate(10, 3, 2)]
    assert batches == [[[0, 1], [2, 3]], [[4, 5], [6]], [[7, 8], [9]]]


def test_rank_without_a_sample_takes_part():
    assert [answer[2] for answer in evaluate(2, 3, 4)] == [[[0]], [[1]], []]


def test_evaluation_with_workers_is_the_same_and_leaves_no_thread():
    before = threading.active_count()
    assert evaluate(10, 2, 3, workers=2) == evaluate(10, 2, 3)
    assert threading.active_count() == before


def test_evaluation_that_raises_leaves_no_thread():
    trainer = Rank()
    trainer.eval_step = lambda batch: 1 / 0
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        Evaluator(samples(10), collate=None, workers=2).run(trainer, ("loss",), 2, StopSignals())
    assert threading.active_count() == before


def test_a_signal_to_any_rank_cuts_an_evaluation_short_on_all():
    trainer, evaluator = Rank(size=2), Evaluator(samples(10), collate=None, workers=0)
    trainer.communicator.maximum = lambda values: np.array([15 * (len(trainer.batches) == 2), 1e9])
    assert evaluator.run(trainer, ("loss",), 1, StopSignals()) is None
    assert (trainer.batches, trainer.sums, evaluator.ledger) == ([[0], [1]], [], None)


def test_ranks_vote_equally_often_though_their_shares_and_clocks_differ():
    votes = []
    for rank in range(3):
        trainer = Rank(rank, 3)
        trainer.communicator.maximum = lambda values, rank=rank: votes.append(rank) or np.array([0.0, 1e9])
        Evaluator(samples(7), collate=None, workers=0).run(trainer, ("loss",), 1, StopSignals())
    assert [votes.count(rank) for rank in range(3)] == [3, 3, 3]


def test_evaluation_neither_augments_nor_shuffles_and_may_be_repeated():
    evaluator = Evaluator(samples(5), collate=None, workers=0)
    found = []
    for _ in range(2):
        trainer = Rank()
        found.append((evaluator.run(trainer, ("loss",), 2, StopSignals()), trainer.batches))
    assert found == [({"loss": (1 + 4 + 4) / 4}, [[0, 1], [2, 3], [4]])] * 2


def test_evaluation_uses_the_collate_of_the_job():
    def collate(items):
        return {"y": np.array([item["y"] for item in items]) * 10, "weight": np.ones(len(items))}

    assert Evaluator(samples(5), collate=collate, workers=0).run(Rank(), ("loss",), 2, StopSignals()) == {"loss": 20.0}


def test_ledger_is_none_before_the_first_evaluation():
    assert Evaluator(samples(5), collate=None, workers=0).ledger is None
