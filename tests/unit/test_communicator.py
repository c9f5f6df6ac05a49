from __future__ import annotations

import numpy as np
import pytest

from hvdtrain.communicator import connect, launched_as
from hvdtrain.errors import DataError
from hvdtrain.topology import Topology

# What several ranks do together is tested in tests/parallel/test_control_plane.py.


@pytest.fixture
def communicator(monkeypatch):
    monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", "1")  # set by connect, which lasts longer than a test
    return connect()


# ---------------------------------------------------------------- what the launcher says
LAUNCHERS = [
    ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}, (3, 4, "Open MPI's mpirun")),
    ({"PMI_SIZE": "4", "PMI_RANK": "3"}, (3, 4, "MPICH's or Intel's mpirun")),
    ({"HOROVOD_SIZE": "4", "HOROVOD_RANK": "3"}, (3, 4, "horovodrun with Gloo")),
    ({"WORLD_SIZE": "4", "RANK": "3"}, (3, 4, "torchrun")),
    ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}, (3, 4, "srun")),
    ({}, (0, 1, "no launcher")),
    ({"WORLD_SIZE": "4"}, (0, 1, "no launcher")),
    ({"WORLD_SIZE": "4", "RANK": ""}, (0, 1, "no launcher")),
    ({"WORLD_SIZE": "four", "RANK": "3"}, (0, 1, "no launcher")),
]


@pytest.mark.parametrize(("environ", "expected"), LAUNCHERS)
def test_launched_as_reads_the_launchers_variables(environ, expected):
    assert launched_as(environ) == expected


def test_launched_as_believes_mpirun_before_the_slurm_step_that_carries_it():
    environ = {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_PROCID": "1",
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_RANK": "5",
    }
    assert launched_as(environ) == (5, 8, "Open MPI's mpirun")


# ---------------------------------------------------------------- one rank
def test_connect_of_one_process_is_one_rank(communicator):
    assert communicator.topology == Topology()
    assert connect() is communicator
    assert len(communicator.job_id) == 32


def test_collectives_of_one_rank_return_its_own(communicator):
    assert communicator.broadcast({"a": [1]}) == {"a": [1]}
    assert communicator.all_gather("x") == ["x"]
    assert communicator.run_on_root(lambda: 7) == 7
    assert communicator.together(lambda: 8) == 8
    assert communicator.barrier() is None
    assert communicator.agree("plan", {"a": 1}, "Cure.") is None


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32", "uint64"])
def test_allreduce_sum_keeps_shape_and_dtype(communicator, dtype):
    values = np.arange(6, dtype=dtype).reshape(2, 3)
    found = communicator.allreduce_sum(values)
    assert (found.tolist(), found.dtype, found.shape) == (values.tolist(), values.dtype, (2, 3))


def test_allreduce_sum_takes_a_transposed_array(communicator):
    values = np.arange(6.0).reshape(2, 3).T
    assert communicator.allreduce_sum(values).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_is_equal_answers_for_each_element(communicator):
    assert communicator.is_equal(np.array([1, 2, 3], dtype=np.uint64)).tolist() == [True, True, True]


def test_together_raises_the_error_and_marks_it_as_agreed(communicator):
    error = DataError("plan: no.")

    def fail():
        raise error

    with pytest.raises(DataError) as caught:
        communicator.together(fail)
    assert caught.value is error
    assert caught.value.is_agreed is True


def test_run_on_root_raises_an_error_of_any_kind(communicator):
    def fail():
        raise KeyError("key")

    with pytest.raises(KeyError, match="key"):
        communicator.run_on_root(fail)
