"""Negative controls of rank invariance: the same job with a part taken out is another run."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from hvdtrain.checkpoint import load
from hvdtrain.errors import ReplicaError
from tests.harness import assert_on_all_ranks
from tests.parallel.distance import TOLERANCE, largest_distance
from tests.parallel.fitting import Fitter, snapshot
from tests.parallel.jobs import images


@pytest.fixture
def toy(adapter, communicator):
    return Fitter(importlib.import_module(f"tests.parallel.toy_{adapter}"), communicator)


@pytest.fixture
def one_process():
    return load(Path(os.environ["HVDTRAIN_TEST_ONE_PROCESS"])).state


@pytest.fixture
def make_trainer(toy, adapter):
    def make(kind, seed=images.config.seed):
        model, loss = getattr(images, f"{adapter}_model"), getattr(images, f"{adapter}_loss")
        # The order of samples stays that of the job; only the initial weights follow ``seed``.
        settings = images.config.model_dump(exclude_unset=True)
        return toy.trainer(lambda: _seeded(adapter, seed, model), kind=kind, loss=loss, shuffle=True, **settings)

    return make


def _seeded(adapter, seed, model):
    if adapter == "torch":
        import torch

        torch.manual_seed(seed)
    else:
        import keras

        keras.utils.set_random_seed(seed)
    return model()


def test_the_whole_trainer_passes_the_comparison(toy, make_trainer, one_process):
    trainer = make_trainer("Trainer")
    trainer.fit(images.train_data())
    weights, slots = snapshot(trainer)
    assert largest_distance(weights, one_process.weights) <= TOLERANCE
    assert largest_distance(slots, one_process.slots) <= TOLERANCE


def test_the_root_decides_the_weights_of_ranks_born_differently(toy, make_trainer, one_process):
    trainer = make_trainer("Trainer", seed=images.config.seed + toy.rank)
    trainer.fit(images.train_data())
    assert largest_distance(snapshot(trainer)[0], one_process.weights) <= TOLERANCE


def test_without_reduction_every_rank_fails_the_comparison(toy, make_trainer, one_process):
    trainer = make_trainer("LocalTrainer")
    with pytest.raises(ReplicaError, match=r"^step 12: all ranks must hold the same state"):
        trainer.fit(images.train_data())
    distance = largest_distance(snapshot(trainer)[0], one_process.weights)
    assert_on_all_ranks(toy.communicator, distance > 100 * TOLERANCE, f"distance {distance}")


def test_without_broadcast_the_other_rank_fails_the_comparison(toy, make_trainer, one_process):
    trainer = make_trainer("SilentTrainer", seed=images.config.seed + toy.rank)
    with pytest.raises(ReplicaError, match=r"^start: all ranks must hold the same state"):
        trainer.fit(images.train_data())
    trainer._require_equal_replicas = lambda where: trainer.export_state()
    trainer.fit(images.train_data())
    distance = largest_distance(snapshot(trainer)[0], one_process.weights)
    assert_on_all_ranks(toy.communicator, distance > 100 * TOLERANCE, f"distance {distance}")
