from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict

import pytest

from hvdtrain.topology import Topology


def test_topology_without_arguments_is_one_process():
    assert asdict(Topology()) == {
        "rank": 0,
        "size": 1,
        "local_rank": 0,
        "local_size": 1,
        "cross_rank": 0,
        "cross_size": 1,
    }


@pytest.mark.parametrize(("rank", "is_root"), [(0, True), (1, False), (2, False)])
def test_is_root_on_rank_0_alone(rank, is_root):
    assert Topology(rank=rank, size=3).is_root is is_root


def test_is_root_ignores_the_local_rank():
    assert Topology(rank=2, size=4, local_rank=0, local_size=2, cross_rank=1, cross_size=2).is_root is False


def test_str_is_the_tag_of_messages():
    assert str(Topology(rank=1, size=2)) == "[rank 1 of 2]"


@pytest.mark.parametrize("prefix", ["", "local_", "cross_"])
@pytest.mark.parametrize(("rank", "size"), [(-1, 2), (2, 2), (0, 0)])
def test_rank_outside_its_size_raises(prefix, rank, size):
    with pytest.raises(ValueError, match="must lie in") as caught:
        Topology(**{f"{prefix}rank": rank, f"{prefix}size": size})
    assert str(caught.value) == f"Topology: {prefix}rank must lie in [0, {size}), got {rank}."


def test_topology_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Topology().rank = 1
