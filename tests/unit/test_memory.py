from __future__ import annotations

import resource

import numpy as np
import pytest

from hvdtrain import memory
from hvdtrain.memory import peak_bytes
from tests.unit.fresh_process import run_fresh

#: Takes 64 MiB, gives them back, and tells how much the peak has grown meanwhile.
GROWS = """
import numpy as np
from hvdtrain.memory import peak_bytes
before = peak_bytes()
np.ones(64 << 20, np.uint8)
after = peak_bytes()
print(after - before >> 20, peak_bytes() == after)
"""


def test_the_peak_stays_when_memory_is_given_back():
    grown, stays = run_fresh(GROWS)[0].split()
    assert 60 <= int(grown) <= 70
    assert stays == "True"


def test_the_peak_of_a_small_process_is_not_that_of_its_large_parent():
    held = np.ones(512 << 20, np.uint8)
    own = int(run_fresh("from hvdtrain.memory import peak_bytes\nprint(peak_bytes() >> 20)")[0])
    assert held[-1] == 1
    assert own < 200


@pytest.mark.parametrize("text", [None, "", "VmHWM:", "VmHWM:\t much kB", "VmRSS:\t 12 kB"])
def test_without_an_account_of_linux_the_count_of_the_system_is_told(text, tmp_path, monkeypatch):
    status = tmp_path / "status"
    if text is not None:
        status.write_text(text)
    monkeypatch.setattr(memory, "_STATUS", status)
    monkeypatch.setattr(memory.sys, "platform", "linux")
    assert peak_bytes() == 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_darwin_counts_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "status")
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert peak_bytes() == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
