"""A program that needs the control plane alone, for ranks under any MPI: ``control_plane.py MODE``."""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from hvdtrain.communicator import connect
from hvdtrain.errors import ConfigError
from hvdtrain.failure import ends_all_ranks, install_excepthook, leave
from hvdtrain.signals import StopSignals


def say(text):
    os.write(1, f"{text}\n".encode())  # one write a line: launchers mix the writes of ranks


def add(communicator):
    topology = communicator.topology
    total = communicator.allreduce_sum(np.array([topology.rank + 1]))[0]
    say(f"rank {topology.rank} of {topology.size}, local {topology.local_rank} of {topology.local_size}, sum {total}")


def fail(communicator):
    """Raise on rank 1 alone; the others wait in a collective."""
    with ends_all_ranks(communicator):
        if communicator.topology.rank == 1:
            raise RuntimeError("broken on purpose")
        communicator.barrier()


def die(communicator):
    """End rank 1 without a word; the others wait in a collective."""
    if communicator.topology.rank == 1:
        os.kill(os.getpid(), 9)
    communicator.barrier()


def refuse(communicator):
    """Raise what all ranks agree on."""
    communicator.barrier()
    leave(ConfigError("job: x must be 1, got 2. Set it to 1."))


def stop(communicator):
    """Work until any rank gets a stop signal, then save for longer than mpirun waits after SIGTERM."""
    with StopSignals() as signals:
        say("up")
        while not signals.agree(communicator):
            time.sleep(0.02)
    time.sleep(1.5)
    say("saved")
    communicator.barrier()
    os._exit(143)


def hang(communicator):
    """Heed no signal but SIGKILL and what ends a process by default."""
    del communicator
    say("up")
    time.sleep(300)


if __name__ == "__main__":
    install_excepthook()
    {"add": add, "fail": fail, "die": die, "refuse": refuse, "stop": stop, "hang": hang}[sys.argv[1]](connect())
