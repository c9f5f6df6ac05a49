"""Many short runs in one launch, because importing TensorFlow costs 5 s a rank.

    mpirun -np 2 python tests/parity/runs.py --framework torch --out FOLDER --initial FOLDER [--runs NAME,NAME]

Each run has a name such as ``digits/adamw``; ``/other-order`` cuts the same batches into more passes, so that one
process sums in another order; ``/again`` repeats a run with random delays on every rank.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import hvdtrain
from hvdtrain.communicator import connect
from hvdtrain.job import load_job
from hvdtrain.registry import load_trainer

HERE = Path(__file__).parent
JOBS = {"digits": HERE.parents[1] / "examples/digits.py", "transformer": HERE / "jobs/transformer.py"}

#: Warm-up then cosine, clipping on, two passes per step, a short last batch: 200 steps.
COMMON = {"max_steps": 200, "backward_passes_per_step": 2, "warmup_epochs": 2.0, "decay": "cosine", "clip_norm": 1.0}
OPTIMIZERS = {
    "sgd": {"optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4},
    "adam": {"optimizer": "adam", "learning_rate": 2e-3, "weight_decay": 1e-4},
    "adamw": {"optimizer": "adamw", "learning_rate": 2e-3, "weight_decay": 0.01},
    "lamb": {"optimizer": "lamb", "learning_rate": 5e-3, "weight_decay": 0.01},
}


class RandomDelays(hvdtrain.Callback):
    """Makes a different rank late at every step, so that gradients become ready in another order."""

    def on_step_end(self, trainer, report):
        time.sleep(random.SystemRandom().random() * 0.02)


def settings_of(name: str) -> dict[str, object]:
    """Return the settings of a run's name."""
    job, optimizer, *variant = name.split("/")
    settings = {"log_every_steps": 1, "epochs": None, **COMMON, **OPTIMIZERS[optimizer]}
    settings["global_batch_size"] = {"digits": 64, "transformer": 24}[job]
    if variant == ["other-order"]:
        settings["backward_passes_per_step"] = 6
    if "again" in variant or "once" in variant:
        settings["max_steps"] = 30
    return settings


def train(framework: str, name: str, out: Path, initial: Path | None) -> None:
    """Make one run into ``out/<name>``."""
    parts = name.split("/")
    job = load_job(JOBS[parts[0]])
    settings = settings_of(name) if initial else {"max_steps": 0, "global_batch_size": 8}
    trainer = load_trainer(framework)(
        job.required(f"{framework}_model"),
        loss=job.required(f"{framework}_loss"),
        config=hvdtrain.TrainConfig(**settings),
        run_dir=out / name.replace("/", "-"),
        init_from=initial and initial / parts[0] / "checkpoints/step-00000000",
        trace_every_steps=None if "again" in parts or "once" in parts else 200,
        callbacks=[RandomDelays()] if "again" in parts else [],
    )
    trainer.fit(job.required("train_data")())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--framework", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--initial", type=Path)
    parser.add_argument("--runs", required=True)
    options = parser.parse_args()
    connect()
    for name in options.runs.split(","):
        train(options.framework, name, options.out, options.initial)


if __name__ == "__main__":
    main()
