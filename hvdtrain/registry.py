"""Name -> adapter. One process uses one framework."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

from hvdtrain.errors import AdapterError
from hvdtrain.wording import did_you_mean

if TYPE_CHECKING:
    from hvdtrain.trainer import Trainer

_ADAPTERS = {
    "tensorflow": ("hvdtrain.tensorflow_adapter.trainer", "TensorFlowTrainer"),
    "torch": ("hvdtrain.torch_adapter.trainer", "TorchTrainer"),
}

_claimed: tuple[str, str] | None = None


def claim(name: str, reason: str) -> None:
    """Record which framework this process uses; refuse a second one."""
    global _claimed
    if _claimed is None:
        _claimed = (name, reason)
    elif _claimed[0] != name:
        raise AdapterError(
            f"claim: this process already uses {_claimed[0]!r} ({_claimed[1]}), so it cannot use {name!r} ({reason}). "
            "Start a second process for the other framework."
        )


def load_trainer(name: str) -> type[Trainer]:
    """Return the trainer class of a framework, importing it.

    Raises:
        AdapterError: The name is unknown, or the framework or its Horovod binding is missing or broken.
    """
    require_known(name)
    for package in (name, "horovod"):
        if importlib.util.find_spec(package) is None:
            raise AdapterError(f"load_trainer: {name!r} needs the package {package}, got none. {_cure(name)}")
    module, attribute = _ADAPTERS[name]
    try:
        found: type[Trainer] = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise AdapterError(
            f"load_trainer: {name!r} needs {name} and horovod built for it, got ImportError: {error}. {_cure(name)}"
        ) from error
    return found


def require_known(name: str) -> None:
    """Refuse a name that is no framework of ours.

    Raises:
        AdapterError: Lists the known ones, and the nearest.
    """
    if name not in _ADAPTERS:
        hint = did_you_mean(name, _ADAPTERS, cutoff=0.4)
        raise AdapterError(f"load_trainer: unknown framework {name!r}, expected one of 'tensorflow', 'torch'.{hint}")


def _cure(name: str) -> str:
    return f"Run 'HVDTRAIN_FRAMEWORKS={name} bash docker/install.sh', which installs and builds both."
