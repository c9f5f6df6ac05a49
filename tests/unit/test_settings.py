from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvdtrain.settings import FOR_HOROVOD, FOR_HOROVOD_ON_CPU, FOR_MPI, FOR_PROCESS, FOR_TORCH, settle
from tests.harness.requirements import require


def test_settle_leaves_what_the_user_has_set(monkeypatch):
    monkeypatch.setenv("HVDTRAIN_A", "own")
    monkeypatch.setenv("HVDTRAIN_B", "gone")
    monkeypatch.delenv("HVDTRAIN_B")
    settle({"HVDTRAIN_A": "1", "HVDTRAIN_B": "2"})
    assert (os.environ["HVDTRAIN_A"], os.environ.pop("HVDTRAIN_B")) == ("own", "2")


def test_no_variable_stands_in_two_lists():
    names = [name for part in (FOR_MPI, FOR_HOROVOD, FOR_HOROVOD_ON_CPU, FOR_TORCH, FOR_PROCESS) for name in part]
    assert len(names) == len(set(names))


LARGE_PAGES = """
import sys, torch
from hvdtrain.settings import FOR_TORCH, settle
settle(FOR_TORCH if sys.argv[1] == "with" else {})
kept = torch.ones(16 << 20)
print(sum(int(line.split()[1]) for line in open("/proc/self/smaps") if line.startswith("AnonHugePages")))
"""


def test_torch_takes_large_pages_when_told_after_its_import():
    require("torch")
    mode = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not mode.exists() or "[madvise]" not in mode.read_text():
        pytest.skip("the kernel gives large pages to all, or to nobody")
    env = {name: value for name, value in os.environ.items() if name not in {*FOR_TORCH, *FOR_PROCESS}}

    def huge_kib(how: str) -> int:
        words = [sys.executable, "-c", LARGE_PAGES, how]
        return int(subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=True).stdout)

    assert huge_kib("with") > 32 << 10
    assert huge_kib("without") < 8 << 10
