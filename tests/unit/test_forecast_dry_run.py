from __future__ import annotations

import itertools
import os
import sys
import time

import numpy as np
import pytest

from hvdtrain.errors import ConfigError
from hvdtrain.forecast.dry_run import DryRequest, DryRunner, run_together
from hvdtrain.portable import PortableState
from hvdtrain.timed_run import TimedRun

STATE = PortableState({"fc.weight": np.zeros((2, 3), np.float32)})
REQUEST = DryRequest(num_processes=2, share=6, batch_size=3, passes=2)


def timed(step_ms, *, pass_ms=8.0, memory=100):
    return TimedRun(len(step_ms) + 1, tuple(step_ms), {"forward and backward": pass_ms}, memory, STATE)


def runner(tmp_path, **values):
    return DryRunner(tmp_path / "job.py", "torch", ("--size", "tiny"), 2, **{"warm_up": 2, "num_steps": 3, **values})


def test_steps_with_company_count_of_all_processes(tmp_path):
    # Warm-up of two steps (the first one has no time), the wait for the others, what counts, and two that may be alone.
    first = timed([900.0, 800.0, 3.0, 1.0, 2.0, 700.0, 700.0])
    second = timed([900.0, 800.0, 6.0, 5.0, 4.0, 700.0, 700.0], pass_ms=10.0, memory=300)
    made = runner(tmp_path)._told(REQUEST, [first, second])
    assert made.step_s == (0.001, 0.002, 0.003, 0.004, 0.005, 0.006)
    assert made.pass_s == 0.005  # of the slower one, whose step has two
    assert (made.memory_bytes, made.model.num_parameters) == (300, 6)


def test_a_job_that_ends_too_early_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"plan: a dry run must make 5 steps, got 4, where the job ends\."):
        runner(tmp_path)._told(REQUEST, [timed([1.0] * 20), timed([1.0] * 3)])


def test_the_command_is_a_training_of_the_share_alone(tmp_path):
    (tmp_path / "job.py").touch()
    words = runner(tmp_path)._command(REQUEST, tmp_path, 1)
    told = dict(itertools.pairwise(words))
    assert words[:3] == ["hvdtrain", "train", str(tmp_path / "job-1.py")]
    assert (told["--global-batch-size"], told["--batch-size"], told["--backward-passes-per-step"]) == ("6", "3", "2")
    assert told["--size"] == "tiny"
    assert "--no-noise-scale" in words
    assert words[-2:] == ["--run-dir", str(tmp_path / "run-1")]


@pytest.mark.parametrize("fails", [0, 1])
def test_the_first_that_fails_ends_the_others(fails, tmp_path):
    commands = [[sys.executable, "-c", "import time; time.sleep(60)"] for _ in range(2)]
    commands[fails] = [sys.executable, "-c", "import sys; sys.exit('no such luck')"]
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"(?s)plan: .* must end well on 1 rank, got 1:.*no such luck"):
        run_together(commands, os.environ, tmp_path)
    assert time.monotonic() - began < 40
