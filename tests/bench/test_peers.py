"""The benchmark runs: every contender trains and tells as many steps as it was asked for. It judges no time."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.bench.peers import NAMES, Case, table, time_of
from tests.harness import require


@pytest.mark.parametrize(("framework", "job"), [("torch", "gpt"), ("tensorflow", "mlp")])
def test_every_contender_tells_its_steps(framework, job):
    require(framework)
    case, medians = Case(framework, job, "tiny", 2, warm_up=1, num_steps=3), {}
    for name in NAMES[framework]:
        if name == "deepspeed" and find_spec("deepspeed") is None:
            continue  # tests/parity says what installs it
        times = time_of(case, name)
        assert len(times) == 3, name
        assert min(times) > 0, name
        medians[name] = times[1]
    assert table([(case, medians)]).count("\n") == 2
