"""Weights of a checkpoint in a model, where there is no run: for evaluation, export and serving.

Needs the model's framework alone, neither Horovod nor MPI.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdtrain.checkpoint import load_named
from hvdtrain.errors import ConfigError

#: Where each framework keeps the classes of its models.
_MODELS = {"torch": "torch.nn.", "tensorflow": "keras."}


def load_weights(model: Any, path: str | Path, *, names: Mapping[str, str] | None = None) -> Path:
    """Verify a checkpoint and copy its weights into ``model``, whichever framework wrote it.

    Args:
        model: A ``torch.nn.Module`` or a built ``keras.Model``, of the shapes that were trained.
        path: Folder of the checkpoint, such as ``runs/job-torch/checkpoints/step-00000042``, or of a run, which stands
            for its newest checkpoint that verifies.
        names: The job's ``names``, where it has some: ``{neutral: keras path}``.

    Returns:
        Folder of the checkpoint that was taken.

    Raises:
        CheckpointError: The checkpoint is damaged, or a tensor of model or file has no partner.
        ConfigError: The model is of no known framework.
    """
    framework = _framework_of(model)
    adapter = importlib.import_module(f"hvdtrain.{framework}_adapter.state")
    found = load_named(Path(path))
    adapter.load_weights(model, found.state, names or {})
    return found.path


def _framework_of(model: Any) -> str:
    """Return the framework of a model by the modules of its classes, without importing any."""
    modules = [f"{cls.__module__}." for cls in type(model).__mro__]
    for name, home in _MODELS.items():
        if any(module.startswith(home) for module in modules):
            return name
    raise ConfigError(
        f"load_weights: the model must be a torch.nn.Module or a keras.Model, got {type(model).__name__}. Pass the "
        "model itself, not the function that makes it."
    )
