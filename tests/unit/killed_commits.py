"""Kills a process at every stage of a commit and tells what is left; a program for the tests beside it.

An audit hook sees each call of the system that makes, renames or removes something, before it happens; bytes that
are written are seen by ``on_bytes``. A child that is forked for each stage kills itself there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np

from hvdtrain import checkpoint
from hvdtrain.errors import CheckpointError
from hvdtrain.portable import PortableState

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree")
FOLDER = Path("checkpoints")


def state(value):
    return PortableState({"w": np.full(4, value, np.float32)}, {"w/m": np.full(4, value, np.float32)})


def commit(step, value, on_bytes=lambda count: None):
    checkpoint.commit(FOLDER, step, state(value), {"counters": {"global_step": step}}, on_bytes)


def make_new():
    """An older checkpoint and none of this step."""
    commit(1, 1.0)


def make_replaced():
    """The only checkpoint, of the very step that is written again."""
    commit(2, 1.0)


def make_replaced_again():
    """The same, and a commit before was killed between its renames."""
    commit(2, 1.0)
    (FOLDER / "step-00000002").rename(FOLDER / "step-00000002.tmp-old")


def make_pruned():
    """Two, of which the older one is removed."""
    commit(1, 1.0)
    commit(2, 2.0)


SITUATIONS = {
    "new": (make_new, lambda tick: commit(2, 2.0, tick), {(1, 1.0), (2, 2.0)}),
    "replaced": (make_replaced, lambda tick: commit(2, 2.0, tick), {(2, 1.0), (2, 2.0)}),
    "replaced again": (make_replaced_again, lambda tick: commit(2, 2.0, tick), {(2, 1.0), (2, 2.0)}),
    "pruned": (make_pruned, lambda tick: checkpoint.remove(FOLDER / "step-00000001"), {(2, 2.0)}),
    "resumed": (make_replaced_again, lambda tick: checkpoint.remove_unfinished(FOLDER, newer_than=2), {(2, 1.0)}),
}


def kill_at(stage, action):
    """Run an action in a child that is killed at a stage; return whether it was, and what it was about to do."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        left = [stage]

        def tick(event):
            left[0] -= 1
            if left[0] == 0:
                os.write(write, str(event).encode())
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(lambda event, arguments: tick(event) if event in EVENTS else None)
        action(lambda count: tick("write"))
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read) as stream:
        return os.WIFSIGNALED(status), stream.read()


def what_is_left():
    """Return the newest checkpoint and what is wrong: one that does not load, or that resuming loses."""
    try:
        for path in checkpoint.list_checkpoints(FOLDER):
            checkpoint.load(path)
        found = checkpoint.find_latest(FOLDER)
        step = found.manifest["counters"]["global_step"]
        checkpoint.remove_unfinished(FOLDER, newer_than=step)
        again = checkpoint.find_latest(FOLDER)
        values = {float(read.state.weights["w"][0]) for read in (found, again)}
        names = sorted(path.name for path in FOLDER.iterdir())
        commit(step + 1, 9.0)
        return {"found": [step, values.pop()], "differ": bool(values), "names": names}
    except CheckpointError as error:
        return {"error": str(error)}


def main():
    for name, (make, action, _) in SITUATIONS.items():
        stage, is_killed = 0, True
        while is_killed:
            stage += 1
            shutil.rmtree(FOLDER, ignore_errors=True)
            make()
            is_killed, event = kill_at(stage, action)
            print(json.dumps({"situation": name, "event": event, "is_killed": is_killed, **what_is_left()}))


if __name__ == "__main__":
    main()
