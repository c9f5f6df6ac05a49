"""Which versions this process runs, read from package metadata so that nothing is imported for it."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import hvdtrain

_PACKAGES = {"torch": ("torch",), "tensorflow": ("tensorflow", "keras")}
#: Distributions that provide a package under another name.
_OTHER_NAMES = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu")}


def installed_versions(framework: str) -> dict[str, str]:
    """Return versions by name: Python, hvdtrain, Horovod, NumPy and the framework."""
    versions = {"python": platform.python_version(), "hvdtrain": hvdtrain.__version__}
    for package in (*_PACKAGES.get(framework, ()), "horovod", "numpy"):
        versions[package] = _version(package)
    return versions


def _version(package: str) -> str:
    for name in _OTHER_NAMES.get(package, (package,)):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "not installed"
