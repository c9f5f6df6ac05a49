"""Synchronous data-parallel training that is the same run in PyTorch and TensorFlow, on any number of ranks.

Importing this package loads no framework and no MPI, and changes nothing: the public names below are
loaded when they are first used, and the two trainers bring their framework with them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hvdtrain.callbacks import Callback
    from hvdtrain.config import TrainConfig
    from hvdtrain.errors import HvdTrainError
    from hvdtrain.job_options import option
    from hvdtrain.mlflow_log import MlflowLog
    from hvdtrain.stream import Stream
    from hvdtrain.tensorflow_adapter.trainer import TensorFlowTrainer
    from hvdtrain.tokens import TokenWindows
    from hvdtrain.topology import Topology
    from hvdtrain.torch_adapter.trainer import TorchTrainer
    from hvdtrain.weights import load_weights

__all__ = [
    "Callback",
    "HvdTrainError",
    "MlflowLog",
    "Stream",
    "TensorFlowTrainer",
    "TokenWindows",
    "Topology",
    "TorchTrainer",
    "TrainConfig",
    "__version__",
    "load_weights",
    "option",
]

_LAZY = {
    "Callback": "hvdtrain.callbacks",
    "HvdTrainError": "hvdtrain.errors",
    "MlflowLog": "hvdtrain.mlflow_log",
    "Stream": "hvdtrain.stream",
    "TensorFlowTrainer": "hvdtrain.tensorflow_adapter.trainer",
    "TokenWindows": "hvdtrain.tokens",
    "Topology": "hvdtrain.topology",
    "TorchTrainer": "hvdtrain.torch_adapter.trainer",
    "TrainConfig": "hvdtrain.config",
    "load_weights": "hvdtrain.weights",
    "option": "hvdtrain.job_options",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, the ones not loaded yet included."""
    return sorted(__all__)
