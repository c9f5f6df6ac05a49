"""The toy job as a script of one's own whose rank 1 fails: ``python fails.py FRAMEWORK RUN_DIR HOW [always]``.

It does so in the callback of step 3, while rank 0 has gone on; in the first attempt of a launch only, unless always.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from pathlib import Path

import hvdtrain


class Fail(hvdtrain.Callback):
    """Ends rank 1 in one of several ways."""

    def __init__(self, how: str) -> None:
        self.how = how

    def on_step_end(self, trainer, report):
        if report.global_step != 3 or trainer.topology.rank != 1:
            return
        time.sleep(0.3)  # the root is told of as waiting in step 4
        if self.how == "raise":
            raise LookupError("no such width")
        if self.how == "exit":
            sys.exit(3)
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    framework, run_dir, how, *always = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("toy", Path(__file__).parent / "toy.py")
    toy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(toy)
    trainer_class = hvdtrain.TorchTrainer if framework == "torch" else hvdtrain.TensorFlowTrainer
    trainer = trainer_class(
        getattr(toy, f"{framework}_model"),
        loss=getattr(toy, f"{framework}_loss"),
        config=toy.config.replace(save_every_steps=1, optimizer="adamw", learning_rate=0.01),
        run_dir=run_dir,
        callbacks=[Fail(how)] if always or "HVDTRAIN_RESTART" not in os.environ else [],
    )
    trainer.fit(toy.train_data())


if __name__ == "__main__":
    main()
