"""examples/digits.py, slowed down while a file ``slow`` lies beside this one, so that a test meets it half-way."""

import runpy
import time
from pathlib import Path

globals().update(runpy.run_path("/opt/hvdtrain/examples/digits.py"))

_SLOW = Path(__file__).with_name("slow")
_whole = globals()["train_data"]


class _SlowData:
    def __init__(self, samples):
        self._samples = samples

    def __len__(self):
        return len(self._samples)

    def __getitem__(self, row):
        if _SLOW.exists():
            time.sleep(0.02)
        return self._samples[row]


def train_data():
    return _SlowData(_whole())
