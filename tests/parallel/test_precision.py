"""Precision, compression and compilation: one launch per framework, and the program without a compiler."""

from __future__ import annotations

import pytest

from tests.harness import require, run_ranks
from tests.parallel.commands import FRAMEWORKS, train

RANKED = "tests/parallel/ranked"
TIMEOUT_S = 240


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_precision_has_its_values_on_four_ranks(framework):
    require(framework)
    run_ranks(
        f"{RANKED}/test_precision.py",
        num_ranks=4,
        timeout_s=TIMEOUT_S,
        args=("--adapter", framework, f"{RANKED}/test_precision_{framework}.py"),
    )


def test_missing_compiler_ends_two_ranks_with_one_message(tmp_path):
    require("torch")
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "CXX": "/no/such/compiler"}
    options = ("--framework", "torch", "--compile", "--run-dir", str(tmp_path / "run"))
    finished = train("toy.py", *options, num_ranks=2, env=folders, timeout_s=TIMEOUT_S)
    told = [line for line in finished.stderr.splitlines() if line.startswith("hvdtrain: error: ")]
    assert len(told) == 1, finished.output
    begin = "hvdtrain: error: compile: PyTorch must be able to compile the loss, got InvalidCxxCompiler: "
    assert told[0].startswith(begin), finished.output
    assert "Traceback" not in finished.output
    assert finished.returncode == 2
