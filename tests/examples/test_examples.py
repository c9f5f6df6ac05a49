"""The examples run as the README says, and the twins differ in framework lines alone."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.harness import mpirun, require

ROOT = Path(__file__).parents[2]

#: What only a line about a framework may mention.
_FRAMEWORK_WORDS = ("torch", "tensorflow", "keras", "nn.", "layers.", "cross_entropy", "argmax", "sparse_", "Trainer(")


def test_own_scripts_differ_only_in_framework_lines() -> None:
    texts = [(ROOT / f"examples/own_script_{name}.py").read_text().splitlines() for name in ("torch", "tensorflow")]
    changed = [line for line in difflib.ndiff(*texts) if line[:2] in ("- ", "+ ") and line[2:].strip()]
    assert changed
    assert [line for line in changed if not any(word in line for word in _FRAMEWORK_WORDS)] == []


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_own_script_on_two_ranks_learns(framework: str) -> None:
    require(framework)
    finished = mpirun(2, "python", str(ROOT / f"examples/own_script_{framework}.py"), timeout_s=120)
    assert finished.returncode == 0, finished.stderr
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith(framework)]
    assert line.startswith(f"{framework} on 2 ranks: accuracy 0.9"), line


def test_quickstart_reaches_the_accuracy_in_both_frameworks(tmp_path: Path) -> None:
    require("torch")
    require("tensorflow")
    command = ["bash", str(ROOT / "examples/quickstart.sh"), str(tmp_path / "runs")]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, env=dict(os.environ), check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    for framework in ("torch", "tensorflow"):
        summary = json.loads((tmp_path / "runs" / framework / "summary.json").read_text())
        assert summary["framework"] == framework
        assert summary["size"] == 2
        assert summary["eval"]["accuracy"] >= 0.97
        assert summary["ledger"]["train"] == {"once": 1438, "more": 0, "never": 0}
        assert framework in finished.stdout
