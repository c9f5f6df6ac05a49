from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hvdtrain.bench import BenchRequest, Scale, as_json, efficiency, run_bench
from hvdtrain.cli.jobs import parse_sizes
from hvdtrain.errors import ConfigError

SPLIT = {
    **{"data": 0.5, "forward and backward": 80.0, "communication": 5.0, "waiting": 2.0, "update": 10.0},
    "callbacks": 1.0,
}


def request(**values):
    told = {"sizes": (1, 2, 4), "is_weak": True, "global_batch_size": 8, "num_steps": 30, "warm_up": 5, "repeats": 3}
    return BenchRequest(Path("job.py"), "torch", **{**told, **values})


def scale(size=1, batch=8, step_ms=(90.0, 100.0, 120.0, 100.0), **parts):
    return Scale(size, batch, list(step_ms), [{**SPLIT, **parts}])


@pytest.mark.parametrize(
    ("is_weak", "sizes", "batches"),
    [(True, (1, 2, 4), [8, 16, 32]), (False, (1, 2, 4), [8, 8, 8]), (True, (2, 4), [8, 16])],
)
def test_the_global_batch_grows_with_the_ranks_in_weak_scaling_alone(is_weak, sizes, batches):
    asked = request(is_weak=is_weak, sizes=sizes)
    assert [asked.batch_of(size) for size in sizes] == batches


def test_figures_are_medians_and_efficiency_is_throughput_per_rank():
    one, two = scale(), scale(2, 16, (110.0, 125.0, 125.0, 200.0))
    assert (one.median_ms, one.samples_per_s) == (100.0, 80.0)
    assert efficiency(two, one) == pytest.approx(0.8)
    assert efficiency(one, one) == 1.0
    # Strong scaling: half the time on two ranks is perfect.
    assert efficiency(scale(2, 8, (50.0,) * 4), one) == 1.0


def test_the_split_is_the_median_of_the_repeats():
    measured = scale()
    measured.splits += [{**SPLIT, "data": 9.0}, {**SPLIT, "data": 0.7}]
    assert measured.split["data"] == 0.7


@pytest.mark.parametrize(
    ("parts", "begins"),
    [
        ({}, "nothing stands out"),
        ({"data": 30.0}, "data takes 23% of a step: the ranks wait for samples"),
        ({"communication": 90.0}, "communication takes 49% of a step"),
        ({"waiting": 30.0, "data": 20.0}, "waiting takes 2"),
        ({"update": 90.0}, "update takes 5"),
    ],
)
def test_the_largest_part_that_is_worth_it_is_named_first(parts, begins):
    assert scale(2, 16, **parts).advice().startswith(begins)


def test_json_holds_every_figure():
    told = as_json(request(), [scale(), scale(2, 16)])
    assert [entry["size"] for entry in told["scales"]] == [1, 2]
    assert told["scaling"] == "weak"
    assert told["scales"][1]["efficiency"] == pytest.approx(1.0)


@pytest.mark.parametrize(("text", "sizes"), [("1,2,4", (1, 2, 4)), ("2", (2,)), ("4,1,4", (1, 4))])
def test_numbers_of_ranks_are_read(text, sizes):
    assert parse_sizes("bench", text) == sizes


@pytest.mark.parametrize("text", ["", "0,1", "two", "1,,2", "-1"])
def test_other_numbers_of_ranks_are_refused(text):
    with pytest.raises(ConfigError, match="bench: -np must be numbers from 1"):
        parse_sizes("bench", text)


@pytest.mark.skipif(shutil.which("mpirun") is None and "HVDTRAIN_REQUIRE" not in os.environ, reason="needs mpirun")
def test_each_run_is_told_before_it_begins_and_a_failure_with_its_ranks(tmp_path):
    job, told = tmp_path / "job.py", []
    job.write_text("import hvdtrain\nconfig = hvdtrain.TrainConfig(global_batch_size=4)\n")
    asked = BenchRequest(job, "torch", (1,), True, 4, num_steps=30, warm_up=5, repeats=2)
    with pytest.raises(ConfigError, match=r"must end well on 1 rank, got 2:\n  hvdtrain: error: "):
        run_bench(asked, tmp_path / "bench", told.append)
    assert told == ["bench: run 1 of 2: torch on 1 rank, 35 steps"]
