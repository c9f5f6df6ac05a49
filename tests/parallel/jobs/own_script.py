"""The toy job as a script of one's own: ``python own_script.py FRAMEWORK RUN_DIR``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import hvdtrain


def main() -> None:
    framework, run_dir = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("toy", Path(__file__).parent / "toy.py")
    toy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(toy)
    trainer_class = hvdtrain.TorchTrainer if framework == "torch" else hvdtrain.TensorFlowTrainer
    trainer = trainer_class(
        getattr(toy, f"{framework}_model"),
        loss=getattr(toy, f"{framework}_loss"),
        metrics=getattr(toy, f"{framework}_metrics"),
        config=toy.config,
        run_dir=run_dir,
    )
    trainer.fit(toy.train_data(), toy.eval_data())


if __name__ == "__main__":
    main()
