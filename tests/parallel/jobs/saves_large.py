"""Saves 100 M parameters with AdamW's slots while training goes on, and prints what that costs as one JSON line."""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil

from hvdtrain import checkpoint
from hvdtrain.config import TrainConfig
from hvdtrain.saving import Saver

WIDTH, NUM_LAYERS, ROUNDS = 2000, 25, 3
CONFIG = TrainConfig(save_every_steps=1, keep_last=1, epochs=1, optimizer="adamw", learning_rate=1e-3)


class TorchTraining:
    """A model of 25 layers of 4 M parameters; each step updates one of them, so that steps are short."""

    def __init__(self):
        import torch

        self.torch = torch
        torch.set_num_threads(1)
        self.model = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS)])
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.names = {parameter: name for name, parameter in self.model.named_parameters()}
        self.num_steps = 0

    def step(self):
        layer = self.model[self.num_steps % NUM_LAYERS]
        self.optimizer.zero_grad(set_to_none=True)
        layer(self.torch.ones(1, WIDTH)).square().mean().backward()
        self.optimizer.step()
        self.num_steps += 1

    def state(self):
        from hvdtrain.torch_adapter.state import export_state

        return export_state(self.model, self.optimizer, self.names)


class TensorFlowTraining:
    """The same in Keras, whose kernels lie the other way round."""

    def __init__(self):
        import keras
        import tensorflow as tf

        from hvdtrain.tensorflow_adapter.optimizers import build_optimizer
        from hvdtrain.tensorflow_adapter.state import NamedVariables

        tf.config.threading.set_intra_op_parallelism_threads(1)
        layers = [keras.layers.Dense(WIDTH, use_bias=False, name=f"layer{index}") for index in range(NUM_LAYERS)]
        self.model = keras.Sequential([keras.layers.Input((WIDTH,)), *layers])
        self.optimizer = build_optimizer(CONFIG)
        self.optimizer.build(self.model.trainable_variables)
        self.named = NamedVariables(self.model, {})
        self.gradient, self.rate = tf.ones((WIDTH, WIDTH)), tf.constant(1e-3)
        self.num_steps = 0

    def step(self):
        variable = self.model.trainable_variables[self.num_steps % NUM_LAYERS]
        self.optimizer.update_step(self.gradient, variable.value, self.rate)
        self.num_steps += 1

    def state(self):
        from hvdtrain.tensorflow_adapter.state import export_state

        return export_state(self.named, self.optimizer)


def train_while(is_going, training):
    """Train until told; return the seconds of each step, and of all of them."""
    began = last = time.perf_counter()
    steps = []
    while is_going():
        training.step()
        now = time.perf_counter()
        steps.append(now - last)
        last = now
    return steps, last - began


def arrays_of(state):
    return {**state.weights, **state.slots}


def copy_into(memory, state):
    began = time.perf_counter()
    for name, array in arrays_of(state).items():
        np.copyto(memory[name], array)
    return time.perf_counter() - began


def hold_interpreter():
    """Sleep for half a second as a library does that keeps the interpreter's lock."""
    ctypes.PyDLL(None).usleep(500_000)


def resident():
    return psutil.Process().memory_info().rss


def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def main(folder, framework):
    training = {"torch": TorchTraining, "tensorflow": TensorFlowTraining}[framework]()
    for _ in range(2 * NUM_LAYERS):
        training.step()
    memory = {name: np.array(array) for name, array in arrays_of(training.state()).items()}
    before = resident()
    saver = Saver(folder, CONFIG)
    saver.reserve(training.state())
    blocked, copies, longest, written = [], [], [], []
    for number in range(ROUNDS):
        saver.wait()
        copies.append(copy_into(memory, training.state()))
        began = time.perf_counter()
        saver.save(training.state(), {}, number)
        blocked.append(time.perf_counter() - began)

        def is_writing():
            written.append(saver.written_bytes)
            return saver._thread.is_alive()

        steps, seconds = train_while(is_writing, training)
        longest.append(max(steps) / seconds)
    saver.wait()
    grown = peak() - before
    last = checkpoint.list_checkpoints(folder)
    found = checkpoint.load(last[0]).state
    holder = threading.Thread(target=hold_interpreter)
    holder.start()
    held, seconds = train_while(holder.is_alive, training)
    size = sum(array.nbytes for array in memory.values())
    print(
        json.dumps(
            {
                "bytes": size,
                "blocked_s": statistics.median(blocked),
                "copy_s": statistics.median(copies),
                "all": [blocked, copies],
                "longest_step": statistics.median(longest),
                "longest_step_held": max(held) / seconds,
                "peak_growth": grown / size,
                "written": [len(set(written)), written == sorted(written), saver.written_bytes],
                "checkpoints": [path.name for path in last],
                "values": sum(array.size for array in found.weights.values()),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
