"""Load a job file, and check that it holds what the chosen framework needs."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hvdtrain.config import TrainConfig
from hvdtrain.errors import ConfigError
from hvdtrain.job_options import GivenOptions, giving
from hvdtrain.registry import require_known
from hvdtrain.wording import nearest

FRAMEWORKS = ("tensorflow", "torch")

_OPTIONAL = ("prepare_data", "eval_data", "augment", "collate", "callbacks")


@dataclass(frozen=True)
class Job:
    """A checked job file.

    Attributes:
        name: The file's name without ``.py``.
        config: Its ``config``.
        digest: SHA-256 of the file and of the values of its own options.
    """

    name: str
    path: Path
    config: TrainConfig
    digest: str
    module: ModuleType

    def function(self, name: str) -> Callable[..., Any] | None:
        """Return an optional function of the job; ``None`` when the file does not define it."""
        return getattr(self.module, name, None)

    def required(self, name: str) -> Callable[..., Any]:
        """Return a function that :func:`load_job` or :meth:`require_framework` found."""
        found: Callable[..., Any] = getattr(self.module, name)
        return found

    @property
    def names(self) -> Mapping[str, str]:
        """The job's own mapping of neutral names to Keras paths."""
        return dict(getattr(self.module, "names", {}))

    @property
    def frameworks(self) -> list[str]:
        """Frameworks that the job defines a model and a loss for."""
        return [name for name in FRAMEWORKS if not self._missing(name)]

    def choose_framework(self, wanted: str | None) -> str:
        """Return the framework to use: the wanted one, or the only one that the job serves.

        Raises:
            ConfigError: The job lacks functions of the wanted one, or none was wanted and it serves several.
        """
        if wanted is None:
            served = self.frameworks
            if len(served) == 1:
                return served[0]
            if served:
                raise ConfigError(f"{self.path}: serves {' and '.join(served)}. Choose one with --framework.")
            raise ConfigError(
                f"{self.path}: must define a model and a loss, got neither torch_model and torch_loss "
                "nor tensorflow_model and tensorflow_loss."
            )
        require_known(wanted)
        missing = self._missing(wanted)
        if missing:
            raise ConfigError(
                f"{self.path}: --framework {wanted} needs the functions {wanted}_model and {wanted}_loss, got no "
                f"{' and no '.join(missing)}. Define {'it' if len(missing) == 1 else 'them'} in the job file."
            )
        return wanted

    def _missing(self, framework: str) -> list[str]:
        names = (f"{framework}_model", f"{framework}_loss")
        return [name for name in names if not callable(getattr(self.module, name, None))]


def load_job(path: Path, options: GivenOptions | None = None) -> Job:
    """Run a job file and check its form.

    The file's own folder is put on ``sys.path``, as ``python job.py`` does, so that it can import its neighbours.

    Args:
        path: The job file.
        options: What the command line gave beside the options of the command.

    Raises:
        ConfigError: No such file, it raises, or it lacks ``config`` or ``train_data``.
    """
    if not path.is_file():
        raise ConfigError(f"job: must be a Python file, got {str(path)!r}, which {_hint(path)}")
    options = options or GivenOptions({})
    with giving(options):
        module = _run(path.resolve())
    config = getattr(module, "config", None)
    if not isinstance(config, TrainConfig):
        raise ConfigError(
            f"{path}: must define config = hvdtrain.TrainConfig(...), got "
            f"{'no config' if config is None else type(config).__name__}."
        )
    if not callable(getattr(module, "train_data", None)):
        raise ConfigError(f"{path}: must define the function train_data(), got none. Define it in the job file.")
    for name in _OPTIONAL:
        if getattr(module, name, None) is not None and not callable(getattr(module, name)):
            raise ConfigError(f"{path}: {name} must be a function, got {type(getattr(module, name)).__name__}.")
    digest = hashlib.sha256(path.read_bytes() + repr(sorted(options.asked.items())).encode()).hexdigest()
    return Job(path.stem, path, config, digest, module)


def _hint(path: Path) -> str:
    """Return what is wrong with the path of a job file, and which ones are near."""
    there = {found.stem: str(found) for found in sorted(path.parent.glob("*.py"))} if path.parent.is_dir() else {}
    fault = "is a folder." if path.is_dir() else "does not exist."
    inside = sorted(map(str, path.glob("*.py"))) if path.is_dir() else []
    if inside:
        return f"{fault} Job files in it: {', '.join(inside[:5])}."
    near = nearest(path.stem, there)
    if near is not None:
        return f"{fault} Did you mean {there[near]!r}?"
    told = ", ".join([*there.values()][:5])
    return f"{fault} Job files there: {told}." if told else f"{fault} Check the path."


def _run(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"hvdtrain_job_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"job: must be a Python file, got {str(path)!r}. Name it with .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as an import does, so that classes of the job can be pickled
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except ConfigError:
        raise
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = frames[-1].lineno if frames else getattr(error, "lineno", None)
        raise ConfigError(
            f"{path}: must run without an error, got {type(error).__name__}: {error} at line {line}."
        ) from error
    return module
