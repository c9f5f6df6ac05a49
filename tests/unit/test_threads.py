from __future__ import annotations

import os

import pytest

from hvdtrain.errors import AdapterError
from hvdtrain.threads import require_same_size, threads_per_rank
from hvdtrain.topology import Topology


@pytest.fixture
def one_core():
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.mark.parametrize("local_size", [1, 2, 3, 1000])
def test_threads_are_the_cores_divided_by_the_ranks_of_the_host(local_size):
    cores = len(os.sched_getaffinity(0))
    assert threads_per_rank(Topology(size=1000, local_size=local_size), {}) == max(cores // local_size, 1)


def test_threads_ignore_ranks_of_other_hosts():
    cores = len(os.sched_getaffinity(0))
    assert threads_per_rank(Topology(size=64, local_size=1, cross_size=64), {}) == cores


def test_threads_count_the_cores_that_this_process_may_use(one_core):
    assert threads_per_rank(Topology(), {}) == 1


@pytest.mark.parametrize(("value", "expected"), [("1", None), ("8", None), ("", 1)])
def test_threads_are_left_to_omp_num_threads_when_it_is_set(one_core, value, expected):
    assert threads_per_rank(Topology(), {"OMP_NUM_THREADS": value}) == expected


def test_same_rank_and_size_pass():
    require_same_size(1, 2, Topology(rank=1, size=2))


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 2), (1, 3)])
def test_another_rank_or_size_raises(rank, size):
    with pytest.raises(AdapterError) as caught:
        require_same_size(rank, size, Topology(rank=1, size=2))
    assert str(caught.value) == (
        f"start: Horovod and MPI must see the same ranks, got rank {rank} of {size} from Horovod and rank 1 of 2 from "
        "MPI. Build Horovod with the MPI that launches: bash docker/install.sh."
    )
