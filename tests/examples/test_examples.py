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
def test_own_script_on_two_ranks_learns_and_goes_on_with_more_epochs(framework: str, tmp_path: Path) -> None:
    require(framework)
    script, run = str(ROOT / f"examples/own_script_{framework}.py"), tmp_path / f"runs/own_script_{framework}"
    first = mpirun(2, "python", script, "2", timeout_s=120, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    rows = (run / "metrics.jsonl").read_text()
    finished = mpirun(2, "python", script, timeout_s=120, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith(framework)]
    assert line.startswith(f"{framework} on 2 ranks: accuracy 0.9"), line
    # The first epochs were not trained again: their rows stand as they were, and each sample still counts once.
    assert (run / "metrics.jsonl").read_text().startswith(rows)
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["epoch"], summary["samples_seen"]) == (5, 5 * 1437)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000116", "step-00000145"]


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
