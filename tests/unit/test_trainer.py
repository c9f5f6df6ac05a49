from __future__ import annotations

import json
import threading
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from hvdtrain import checkpoint
from hvdtrain.batching import Order
from hvdtrain.errors import ConfigError, DataError
from hvdtrain.ledger import digest_rows
from hvdtrain.replicas import fingerprint
from hvdtrain.run_folder import RunFolder
from hvdtrain.versions import installed_versions
from tests.unit.fresh_process import run_fresh
from tests.unit.numpy_trainer import (
    TEN,
    AtStep,
    Samples,
    Watcher,
    close,
    make_samples,
    rows_of,
    squared_error,
    train_linear,
    trainer_of,
    weights_of,
)

pytestmark = pytest.mark.usefixtures("after_fit")


# ---------------------------------------------------------------- updates
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"batch_size": 1},
        {"backward_passes_per_step": 3},
        {"data_workers": 2},
        {"batch_size": 3, "data_workers": 1},
    ],
)
def test_fit_makes_the_updates_of_plain_gradient_descent(settings):
    data, trainer = make_samples(10), trainer_of(epochs=2, **settings)
    trainer.fit(data)
    expected = train_linear(data.columns["x"], data.columns["y"], TEN * 2, lr=0.05)
    assert weights_of(trainer) == close(expected)


def test_fit_with_shuffle_follows_the_order_of_each_epoch():
    data, trainer = make_samples(10), trainer_of(epochs=2, shuffle=True, seed=3)
    trainer.fit(data)
    orders = [Order(10, seed=3, epoch=epoch).rows(0, 10) for epoch in (1, 2)]
    batches = [order[start : start + 4] for order in orders for start in (0, 4, 8)]
    assert weights_of(trainer) == close(train_linear(data.columns["x"], data.columns["y"], batches, lr=0.05))


def test_fit_divides_by_the_sum_of_weights():
    # A sample of weight 2 counts as two samples.
    plain, weighted = make_samples(4), make_samples(4)
    weighted.columns["weight"] = np.array([1, 2, 1, 1], dtype=np.float32)
    trainer = trainer_of()
    trainer.fit(weighted)
    expected = train_linear(plain.columns["x"], plain.columns["y"], [[0, 1, 1, 2, 3]], lr=0.05)
    assert weights_of(trainer) == close(expected)


def test_fit_takes_the_rate_of_the_schedule():
    trainer = trainer_of(epochs=2, decay="linear", learning_rate=1.0, clip_norm=1e-6)
    trainer.fit(make_samples(8))
    assert trainer.rates == close([1.0, 0.75, 0.5, 0.25])


def test_fit_augments_training_samples_and_no_others():
    def no_target(sample, rng):
        return {**sample, "y": np.float32(0)}

    trainer = trainer_of(augment=no_target)
    summary = trainer.fit(make_samples(4), make_samples(4))
    # Zero weights fit a target of zero; the targets of the evaluation are -2, -1, 0, 1.
    assert (weights_of(trainer), summary["train"], summary["eval"]) == ([0.0] * 3, {"loss": 0.0}, {"loss": 1.5})


def test_fit_twice_in_one_process_on_two_trainers_gives_the_same():
    found = []
    for name in ("one", "two"):
        trainer = trainer_of(epochs=2, run_dir=name)
        trainer.fit(make_samples(10), make_samples(5))
        found.append((weights_of(trainer), [row["loss"] for row in rows_of(name)]))
    assert found[0] == found[1]


# ---------------------------------------------------------------- order of calls
def test_hooks_of_callbacks_come_in_order():
    watcher = Watcher()
    trainer_of([watcher], epochs=2, eval_every_epochs=2, run_dir="run").fit(make_samples(6), make_samples(2))
    assert watcher.seen == [
        "on_fit_begin",
        "on_step_end 1.1",
        "on_step_end 1.2",
        "on_epoch_end 1",
        "on_step_end 2.3",
        "on_step_end 2.4",
        "on_epoch_end 2",
        "on_evaluate 4",
        "on_checkpoint step-00000004",
        "on_fit_end",
    ]


def test_hooks_of_the_adapter_come_in_order():
    trainer = trainer_of(batch_size=2)
    trainer.fit(make_samples(6), make_samples(3))
    assert trainer.calls == [
        *("start", "prepare", "broadcast_state", "export_state"),
        *("train_step", "train_step"),
        *("average_statistics", "eval_step", "eval_step"),
        *("average_statistics", "export_state", "stop"),
    ]


def test_evaluation_comes_every_few_epochs_and_at_the_end():
    watcher = Watcher()
    trainer_of([watcher], epochs=5, eval_every_epochs=2).fit(make_samples(4), make_samples(2))
    assert [text for text in watcher.seen if "evaluate" in text] == ["on_evaluate 2", "on_evaluate 4", "on_evaluate 5"]


# ---------------------------------------------------------------- files
def test_metrics_hold_the_exact_rows():
    trainer_of(epochs=1, log_every_steps=2, run_dir="run").fit(make_samples(10), make_samples(5))
    rows = rows_of("run")
    assert [(row["event"], row["epoch"], row["global_step"], row["samples_seen"]) for row in rows] == [
        ("train", 1, 2, 8),
        ("train", 1, 3, 10),
        ("eval", 1, 3, 10),
    ]
    data = make_samples(10)
    inputs, targets = np.column_stack([data.columns["x"], np.ones(10)]).astype(float), data.columns["y"].astype(float)
    before = [train_linear(data.columns["x"], data.columns["y"], TEN[:step], lr=0.05) for step in range(4)]
    errors = [((inputs @ w - targets) ** 2)[list(rows)] for w, rows in zip(before, [*TEN, range(5)], strict=True)]
    expected = [np.concatenate(errors[:2]).mean(), errors[2].mean(), errors[3].mean()]
    assert [row["loss"] for row in rows] == close(expected)
    slope = 2 * inputs[8:].T @ (inputs[8:] @ before[2] - targets[8:]) / 2
    assert rows[1]["grad_norm"] == pytest.approx(np.linalg.norm(slope), rel=1e-12)
    assert list(rows[0])[4:] == ["loss", "grad_norm", "learning_rate", "samples_per_s", "time_s"]
    assert list(rows[2])[4:] == ["loss", "time_s"]


def test_evaluation_counts_every_sample_once_with_each_metric():
    def is_negative(model, batch):
        return {"negative": batch["y"] < 0}

    trainer = trainer_of(metrics=is_negative, global_batch_size=2)
    summary = trainer.fit(make_samples(2), Samples(np.zeros((5, 2)), [-1, -1, -1, -1, 1]))
    assert summary["eval"]["negative"] == 0.8
    assert list(summary["eval"]) == ["loss", "negative"]


def test_run_folder_holds_config_metrics_summary_and_the_final_checkpoint():
    trainer = trainer_of(run_dir="run", optimizer="adam")
    summary = trainer.fit(make_samples(10), make_samples(2))
    names = {path.name for path in Path("run").iterdir() if not path.name.startswith("events.")}
    assert names == {"config.json", "metrics.jsonl", "summary.json", "checkpoints"}
    assert json.loads(Path("run/config.json").read_text()) == trainer.config.model_dump(mode="json")
    assert json.loads(Path("run/summary.json").read_text()) == summary
    found = checkpoint.find_latest(Path("run/checkpoints"))
    assert found.path.name == "step-00000003"
    assert [*found.state.weights["weight"], *found.state.weights["bias"]] == weights_of(trainer)
    slots = {f"{weight}/{slot}" for weight in ("weight", "bias") for slot in ("exp_avg", "exp_avg_sq", "step")}
    assert set(found.state.slots) == slots


def test_manifest_tells_where_the_run_stands():
    trainer = trainer_of(run_dir="run", epochs=3, max_steps=5, shuffle=True, seed=9)
    trainer.fit(make_samples(10))
    manifest = checkpoint.find_latest(Path("run/checkpoints")).manifest
    order = Order(10, seed=9, epoch=2)
    used = order.rows(0, 8)
    losses = sum(4 * row["loss"] for row in rows_of("run") if row["epoch"] == 2)
    clock = manifest["recorder"]["clock"]
    assert clock["time_s"] > clock["steady_s"] > 0
    assert clock["steady_samples"] == 14  # without the first step
    assert {name: manifest[name] for name in manifest if name not in ("aliases", "files", "format")} == {
        "framework": "torch",
        "versions": installed_versions("torch"),
        "size": 1,
        "notes": [],
        "counters": {"epoch": 2, "step_in_epoch": 2, "global_step": 5, "samples_seen": 18},
        "plan": {
            "sizes": asdict(trainer._plan.sizes),
            "num_samples": 10,
            "num_eval_samples": None,
            "steps_per_epoch": 3,
            "epochs": 3,
            "total_steps": 5,
            "total_samples": 18,
        },
        "data": {
            "kind": "indexed",
            "num_samples": 10,
            "order_digest": order.digest(),
            "ledger_digest": digest_rows(used).tolist(),
        },
        "patience": {"factor": 1.0, "best": None, "since_best": 0, "since_drop": 0},
        "recorder": {"window": [[0.0, 0.0]], "epoch": [[pytest.approx(losses), 8.0]], "clock": clock},
        "began_from": fingerprint({"weight": np.zeros(2), "bias": np.zeros(1)}),
        "eval_row": None,
        "ledgers": {"train": {"once": 8, "more": 0, "never": 0}, "eval": None},
        "config": trainer.config.model_dump(mode="json"),
    }


def test_summary_holds_the_run_in_numbers():
    data = make_samples(10)
    summary = trainer_of(epochs=2).fit(data, data)
    w = train_linear(data.columns["x"], data.columns["y"], TEN * 2, lr=0.05)
    errors = (np.column_stack([data.columns["x"], np.ones(10)]) @ w - data.columns["y"]) ** 2
    assert summary.pop("samples_per_s") > 0
    assert summary.pop("time_s") > 0
    assert [rank["rank"] for rank in summary.pop("ranks")] == [0]
    assert sum(summary.pop("split").values()) > 0
    assert summary.pop("session")["steps"] == 6
    assert summary.pop("train")["loss"] > summary["eval"]["loss"]
    assert summary == {
        "framework": "torch",
        "size": 1,
        "epoch": 2,
        "global_step": 6,
        "samples_seen": 20,
        "eval": {"loss": pytest.approx(errors.mean(), rel=1e-12)},
        "ledger": {name: {"once": 10, "more": 0, "never": 0} for name in ("train", "eval")},
    }


def test_run_without_evaluation_says_null():
    assert trainer_of().fit(make_samples(4))["eval"] is None


def test_run_without_a_folder_writes_nothing(tmp_path):
    trainer_of().fit(make_samples(4))
    assert list(tmp_path.iterdir()) == []


def test_run_folder_in_use_is_refused_and_left_alone():
    folder = RunFolder.open(Path("run"))
    trainer = trainer_of(run_dir="run")
    with pytest.raises(ConfigError) as caught:
        trainer.fit(make_samples(4))
    assert str(caught.value) == "run folder: run is in use by another run. Wait for it, or choose another --run-dir."
    assert trainer.calls == ["start", "stop"]
    assert sorted(path.name for path in Path("run").iterdir()) == [".lock"]
    folder.close()


def test_used_run_folder_is_refused():
    trainer_of(run_dir="run").fit(make_samples(4))
    before = Path("run/metrics.jsonl").read_text()
    with pytest.raises(ConfigError, match=r"^run folder: run must be new, got one that holds config\.json, "):
        trainer_of(run_dir="run").fit(make_samples(4))
    assert Path("run/metrics.jsonl").read_text() == before


# ---------------------------------------------------------------- refusals and errors
def test_scalar_loss_is_refused_before_the_first_step():
    trainer = trainer_of(loss=lambda model, batch: squared_error(model, batch)[0].mean())
    with pytest.raises(DataError) as caught:
        trainer.fit(make_samples(4))
    assert str(caught.value) == (
        "loss: must return one value per element, got shape [] for 2 samples. "
        "A mean hides how much each rank weighs: use no mean and return what it gives."
    )
    assert trainer.calls == ["start", "prepare", "stop"]


def test_run_refused_at_the_start_leaves_its_folder_for_the_next():
    scalar = trainer_of(loss=lambda model, batch: squared_error(model, batch)[0].mean(), run_dir="run")
    with pytest.raises(DataError):
        scalar.fit(make_samples(4))
    assert trainer_of(run_dir="run").fit(make_samples(4))["global_step"] == 1


def test_data_without_samples_is_refused():
    with pytest.raises(DataError) as caught:
        trainer_of().fit(make_samples(0))
    assert str(caught.value) == (
        "plan: train_data must hold at least 1 sample, got 0. Check the path or the filter that made it."
    )


def test_data_that_can_only_be_iterated_is_refused():
    with pytest.raises(DataError, match=r"^plan: train_data must have len\(\) and \[i\], got generator\. "):
        trainer_of().fit(sample for sample in [1])


def fail(trainer):
    raise KeyError("callback")


@pytest.mark.parametrize("hook", ["on_fit_begin", "on_step_end", "on_epoch_end", "on_evaluate", "on_checkpoint"])
def test_error_of_a_callback_ends_the_run_and_frees_the_folder(hook):
    trainer = trainer_of([AtStep(fail, 0 if hook == "on_fit_begin" else 1, hook)], run_dir="run")
    with pytest.raises(KeyError, match="callback"):
        trainer.fit(make_samples(4), make_samples(2))
    assert trainer.calls[-1] == "stop"
    assert not Path("run/.lock").exists()


@pytest.mark.parametrize("run_dir", [None, "run"])
def test_run_leaves_no_thread_also_after_an_error(run_dir):
    before = set(threading.enumerate())
    with pytest.raises(KeyError, match="callback"):
        trainer_of([AtStep(fail)], run_dir=run_dir, data_workers=2).fit(make_samples(8))
    assert sorted(thread.name for thread in set(threading.enumerate()) - before) == []


def test_constructor_only_stores():
    trainer = trainer_of(run_dir="run")
    assert not Path("run").exists()
    assert not hasattr(trainer, "calls")


IMPORTED = """
import sys
import hvdtrain.train_job
print(sorted({"torch", "tensorflow", "keras", "horovod", "mpi4py"} & set(sys.modules)))
"""


def test_loop_loads_no_framework_and_no_mpi():
    assert run_fresh(IMPORTED) == ("[]\n", "")
