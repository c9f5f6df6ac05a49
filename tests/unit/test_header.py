from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from hvdtrain.config import TrainConfig
from hvdtrain.header import closing_lines, header_lines
from hvdtrain.hooks import Signature
from hvdtrain.launch.telling import LAUNCHER, TERMINAL
from hvdtrain.plan import make_plan
from hvdtrain.recorder import Counters
from hvdtrain.topology import Topology

TENSORS = {
    "fc.weight": ((10, 20), "float32"),
    "fc.bias": ((10,), "float32"),
    "norm.weight": ((10,), "bfloat16"),
    "norm.running_mean": ((10,), "float32"),
    "norm.num_batches_tracked": ((), "int64"),
    "fc.weight/exp_avg": ((10, 20), "float32"),
}
SUMMARY = {
    "framework": "torch",
    "size": 2,
    "global_step": 276,
    "samples_seen": 17256,
    "train": {"loss": 0.13995},
    "eval": {"loss": 0.13, "accuracy": None},
    "ledger": {"train": {"once": 1438, "more": 0, "never": 0}, "eval": None},
    "samples_per_s": 2812.15,
    "time_s": 61.2,
    "session": {"steps": 276, "samples_per_s": 2812.15, "time_s": 61.2},
    "ranks": [{"rank": 0, "memory_bytes": 600 << 20}, {"rank": 1, "memory_bytes": 612 << 20}],
}


def trainer_of(config=None, *, size=2, hosts=1, samples=1438, run_dir=Path("runs/digits"), step=0, **settings):
    config = config or TrainConfig(**{"global_batch_size": 64, "epochs": 12, **settings})
    plan = make_plan(config, num_samples=samples, num_eval_samples=359, size=size)
    return SimpleNamespace(
        framework="torch",
        topology=Topology(size=size, local_size=size // hosts, cross_size=hosts),
        config=config,
        counters=Counters(global_step=step),
        run_dir=run_dir,
        _plan=plan,
        _signature=Signature(TENSORS, ("loss",)),
    )


def header_of(**how):
    lines = header_lines(trainer_of(**how))
    assert max(map(len, lines)) <= 100
    return {line[:17].strip(): line[17:] for line in lines[1:]}


def test_header_tells_the_whole_run():
    assert header_of(optimizer="adamw", learning_rate=0.003, warmup_epochs=1, decay="cosine") == {
        "ranks": "2 on 1 host",
        "data": "1,438 samples per epoch, 359 for evaluation",
        "global batch": "64 = 2 ranks x 32 per rank and pass x 1 pass",
        "parameters": "220 in 3 tensors",
        "steps": "276 in 12 epochs of 23",
        "learning rate": "adamw at 0.003, warm-up until epoch 1, cosine to 0",
        # 860 + 48 of the model, 800 of the optimizer, 860 of gradients
        "memory": "2.51 KiB per rank for weights, gradients and optimizer; activations not counted",
        "run folder": "runs/digits",
    }


def test_header_begins_with_versions():
    first = header_lines(trainer_of())[0]
    assert first.startswith("hvdtrain 0.1.0 with torch ")
    assert ", python 3." in first


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({}, "sgd at 0.01, constant"),
        ({"warmup_epochs": 0.5}, "sgd at 0.01, warm-up until epoch 0.5, then constant"),
        ({"decay": "step", "decay_epochs": 3}, "sgd at 0.01, 0.1 times the rate every 3 epochs"),
        ({"decay": "linear", "decay_epochs": 9}, "sgd at 0.01, linear to 0 by epoch 9"),
        ({"decay": "plateau"}, "sgd at 0.01, 0.1 times the rate after 2 evaluations without gain"),
        (
            {"lr_scaling": "linear", "base_batch_size": 32},
            "sgd at 0.02 (linear scaling of 0.01 at 32), constant",
        ),
    ],
)
def test_header_tells_the_course_of_the_rate(how, told):
    assert header_of(**how)["learning rate"] == told


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"size": 3}, "64 = 3 ranks x at most 22 per rank and pass x 1 pass"),
        ({"batch_size": 8}, "64 = 2 ranks x 8 per rank and pass x 4 passes"),
    ],
)
def test_header_shows_the_batch_arithmetic(how, told):
    assert header_of(**how)["global batch"] == told


def test_header_of_a_stream_and_of_a_run_that_goes_on():
    told = header_of(samples=None, epochs=None, step=7, run_dir=None, size=4, hosts=2)
    assert told["data"] == "a stream, 359 for evaluation"
    assert told["steps"] == "until the stream ends, 7 done"
    assert told["ranks"] == "4 on 2 hosts"
    assert told["run folder"] == "none, nothing is written"
    assert header_of(step=23)["steps"] == "276 in 12 epochs of 23, 23 done"


def test_long_folder_keeps_its_end():
    assert header_of(run_dir=Path("x" * 200 + "/end"))["run folder"].endswith("x/end")


def test_closing_table():
    assert closing_lines(SUMMARY, trainer_of()) == [
        "done: torch on 2 ranks",
        "  steps       276, 17,256 samples seen",
        "  train       loss 0.1399",
        "  evaluation  loss 0.13, accuracy n/a",
        "  throughput  2.81k samples/s",
        "  time        1:01",
        "  memory      at most 612 MiB, on rank 1",
        "  last epoch  samples used once 1,438, more often 0, never 0",
        "  run folder  runs/digits",
    ]


NOISE = {
    "noise_scale": 1234567.8,
    "largest_useful_batch": 1234568,
    "doubling_saves_steps": 0.4321,
    "doubling_adds_samples": 0.1358,
}


def test_closing_table_tells_the_noise_scale_and_what_it_says_of_the_batch():
    lines = closing_lines({**SUMMARY, **NOISE}, trainer_of())
    assert max(map(len, lines)) <= 100
    assert lines[4:6] == [
        "  noise scale  1.235e+06, the largest useful batch is about 1,234,568 samples",
        "  next batch   twice 64 would save about 43% of the steps for 14% more samples",
    ]
    lines = closing_lines({**SUMMARY, **dict.fromkeys(NOISE)}, trainer_of())
    assert lines[4] == "  noise scale  not known yet, the gradient cannot be told from its noise"
    assert not any("next batch" in line for line in lines)


def test_closing_table_without_evaluation_ledger_and_folder():
    summary = {**SUMMARY, "eval": None, "ledger": {"train": None, "eval": None}, "train": {"loss": None}}
    lines = closing_lines(summary, trainer_of(run_dir=None))
    assert [line.split()[0] for line in lines] == ["done:", "steps", "train", "throughput", "time", "memory"]
    assert lines[2] == "  train       loss n/a"


def test_closing_table_of_one_rank_names_none():
    lines = closing_lines({**SUMMARY, "size": 1, "ranks": SUMMARY["ranks"][:1]}, trainer_of(size=1))
    assert "  memory      at most 600 MiB" in lines


def test_closing_table_of_a_continued_run_tells_this_session_and_the_whole_run():
    session = {"steps": 76, "samples_per_s": 1250.0, "time_s": 12.0}
    lines = closing_lines({**SUMMARY, "session": session}, trainer_of())
    told = {line[:14].strip(): line[14:] for line in lines[1:]}
    assert told["throughput"] == "1.25k samples/s in this session, 2.81k in the whole run"
    assert told["time"] == "0:12 in this session, 1:01 in the whole run"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_header_and_closing_table_fold_at_a_narrow_terminal(monkeypatch, width):
    monkeypatch.setenv(LAUNCHER, "id")
    monkeypatch.setenv(TERMINAL, str(width))
    trainer = trainer_of(run_dir=Path("runs") / ("long" * 30), warmup_epochs=1, decay="cosine")
    lines = [*header_lines(trainer), *closing_lines(SUMMARY, trainer)]
    assert max(map(len, lines)) <= width
    assert any(line.endswith("longlong") for line in lines)
