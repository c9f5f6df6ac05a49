"""One framework, one process: MPI, Horovod and the framework start before the first test is watched."""

from __future__ import annotations

import importlib
import warnings

import pytest

from tests.harness import require


@pytest.fixture(scope="session")
def started(request):
    """The toy module of the chosen framework with the control plane; None without ``--adapter``.

    Starting sets environment variables (MPI's yield, Keras's backend), which no single test may do.
    """
    name = request.config.getoption("--adapter")
    if name is None:
        return None
    require(name)
    from hvdtrain.communicator import connect

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a framework says of itself as it is imported
        toy = importlib.import_module(f"tests.parallel.toy_{name}")
        communicator = connect()
        from tests.parallel.fitting import Fitter

        fitter = Fitter(toy, communicator)
        fitter.fit([1.0], global_batch_size=1)
    return fitter


@pytest.fixture
def toy(started, adapter):
    """Makes trainers of the chosen framework, at size 1."""
    return started
