"""The toy with one thing that goes wrong: ``python faulty.py FRAMEWORK RUN_DIR FAULT [SETTINGS] [--resume]``.

``FAULT`` names a function below, which a callback calls after each step with rank and step; ``none`` is none. What a
fault must tell the test that waits for it, it writes into the folder of ``HVDTRAIN_TEST_FOLDER``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path

import hvdtrain
from hvdtrain.resume import ResumeRequest

_spec = importlib.util.spec_from_file_location("toy", Path(__file__).parent / "toy.py")
toy = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(toy)

AT_STEP = 3
LONG_S = 90
#: Much shorter than what the tests call a stall.
NAP_S = 0.2


def none(rank, step):
    pass


def raises_while_the_root_sleeps(rank, step):
    if (rank, step) == (0, AT_STEP):
        time.sleep(120)
    raises(rank, step)


def raises(rank, step):
    if (rank, step) == (1, AT_STEP):
        raise RuntimeError("broken on purpose")


def runs_out_of_memory(rank, step):
    if (rank, step) == (1, AT_STEP):
        raise MemoryError("no memory left on purpose")


def exits_with_zero(rank, step):
    if (rank, step) == (1, AT_STEP):
        sys.exit(0)


def leaves_at_once_with_zero(rank, step):
    if (rank, step) == (1, AT_STEP):
        os._exit(0)


def root_is_killed_in_a_save(rank, step):
    if (rank, step) == (0, AT_STEP - 1):
        # The save of the next step, when a file is written and the folder has not got its name; an earlier one, which
        # may still be going on in its thread, ends as usual.
        sync, folder = os.fsync, Path(sys.argv[2]) / "checkpoints"

        def kill_or_sync(handle):
            if list(folder.glob(f"step-{AT_STEP:08d}.tmp-*/*")):
                os.kill(os.getpid(), signal.SIGKILL)
            sync(handle)

        os.fsync = kill_or_sync


def root_sleeps(rank, step):
    if (rank, step) == (0, AT_STEP):
        time.sleep(LONG_S)  # the root sleeps here


def root_naps(rank, step):
    if (rank, step) == (0, AT_STEP):
        time.sleep(2)


def other_never_returns(rank, step):
    if (rank, step) == (1, AT_STEP):
        while True:
            time.sleep(0.05)  # the other rank is here for ever


def trains_slowly(rank, step):
    if step == AT_STEP:
        _tell(rank, "training")
    time.sleep(NAP_S)


class Faulty(hvdtrain.Callback):
    def __init__(self, fault):
        self._fault = fault

    def on_step_end(self, trainer, report):
        self._fault(trainer.topology.rank, report.global_step)


class Slow:
    """Held-out samples that take their time, and tell when they are read."""

    def __init__(self, samples, nap_s):
        self._samples, self._nap_s = samples, nap_s

    def __len__(self):
        return len(self._samples)

    def __getitem__(self, row):
        if "HVDTRAIN_TEST_FOLDER" in os.environ:
            _tell(os.environ["OMPI_COMM_WORLD_RANK"], "evaluating")
        time.sleep(self._nap_s)
        return self._samples[row]


def evaluates_slowly(rank, step):
    pass


def evaluates_for_minutes(rank, step):
    pass


def spoils_the_second_step(rank, step):
    pass


def _tell(rank, what):
    """Leave a file that holds the process id of this rank."""
    folder = Path(os.environ["HVDTRAIN_TEST_FOLDER"])
    (folder / f".{what}-{rank}").write_text(str(os.getpid()))
    (folder / f".{what}-{rank}").rename(folder / f"{what}-{rank}")


def main() -> None:
    resumes = "--resume" in sys.argv
    framework, run_dir, fault, *settings = [word for word in sys.argv[1:] if word != "--resume"]
    config = toy.config.replace(**json.loads(settings[0] if settings else "{}"))
    held_out = toy.eval_data()
    if fault.startswith("evaluates_"):
        held_out = Slow(held_out * (6 if fault == "evaluates_slowly" else 60), 1.0)
    samples = toy.train_data()
    if fault == "spoils_the_second_step":
        samples[7]["x"] /= 0
    trainer_class = hvdtrain.TorchTrainer if framework == "torch" else hvdtrain.TensorFlowTrainer
    trainer = trainer_class(
        getattr(toy, f"{framework}_model"),
        loss=getattr(toy, f"{framework}_loss"),
        config=config,
        run_dir=run_dir,
        callbacks=[Faulty(globals()[fault])],
        resume=ResumeRequest(is_wanted=resumes),
    )
    trainer.fit(samples, held_out)


if __name__ == "__main__":
    main()
