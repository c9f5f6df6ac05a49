"""A Python process that has loaded nothing yet and sees nothing of this one's environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def run_fresh(program: str) -> tuple[str, str]:
    """Return what a program writes to its two streams."""
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return finished.stdout, finished.stderr
