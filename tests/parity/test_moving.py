"""The README's loops of other origins, and the job that takes their place, end at the same weights on two ranks.

Batches are even, which is where all of these loops are right; ``test_peers.py`` has the cases where they are not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.examples.readme_blocks import PROJECT, README, read_blocks
from tests.harness import require, run_command
from tests.harness.requirements import skip_or_fail
from tests.parity.test_peers import free_ports

BLOCKS = read_blocks(README.read_text())
START = BLOCKS["After: the job of any of them, `moved.py` / bash 1"].text.splitlines()
#: Heading of a loop -> its framework, and the file that the README starts.
ORIGINS = {
    "DistributedDataParallel": ("torch", "ddp.py"),
    "DeepSpeed": ("torch", "ds.py"),
    "plain Horovod": ("torch", "plain.py"),
    "tf.distribute": ("tensorflow", "mirrored.py"),
}
LIMIT_S = 180
#: Of the norm of all weights; the arithmetic is in float32.
TOLERANCE = 1e-6
ENVIRONMENT = {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
    "OMP_NUM_THREADS": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "DS_ACCELERATOR": "cpu",
}
#: Gloo alone, as in peers/deepspeed_zero0.py: DeepSpeed's own reduction through shared memory is compiled at first use.
HEADS = {"ds.py": "import deepspeed.ops\n\ndeepspeed.ops.__compatible_ops__['deepspeed_shm_comm'] = False\n"}
#: Behind a loop: the root writes its weights by PyTorch's names and layout.
TAILS = {
    "torch": """
import os
import numpy
if int(os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"]) == 0:
    numpy.savez("{file}.npz", **{{n.removeprefix("module."): w.numpy() for n, w in model.state_dict().items()}})
""",
    "tensorflow": """
import numpy
if strategy.cluster_resolver.task_id == 0:
    names = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
    numpy.savez("{file}.npz", **dict(zip(names, [array.T for array in model.get_weights()], strict=True)))
""",
}
Weights = Mapping[str, np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the README's files."""
    folder = tmp_path_factory.mktemp("moving")
    (folder / "mine.py").write_text(BLOCKS["Moving here / python 1"].text)
    (folder / "moved.py").write_text(BLOCKS["After: the job of any of them, `moved.py` / python 1"].text)
    for origin, (framework, file) in ORIGINS.items():
        loop = BLOCKS[f"Before: {origin}, `{file}` / python 1"].text
        (folder / file).write_text(HEADS.get(file, "") + loop + TAILS[framework].format(file=file))
    return folder


@pytest.fixture(scope="module")
def job(folder) -> Callable[[str], Weights]:
    """A function of a framework: the final weights of the job, trained once."""

    def get(framework: str) -> Weights:
        run = folder / f"runs/moved-{framework}"
        if not run.exists():
            start([line for line in START if line.endswith(f"moved.py --framework {framework}")], folder)
        return load_file(run / "checkpoints/step-00000018/model.safetensors")

    return get


def start(lines: list[str], folder: Path) -> None:
    """Run lines of the README, with ports that are free."""
    assert lines
    script = "\n".join(lines).replace("deepspeed ", "deepspeed --master_port 12347 ")
    for told, free in zip(("12345", "12346", "12347"), free_ports(3), strict=True):
        script = script.replace(told, str(free))
    finished = run_command(["bash", "-euc", script], timeout_s=LIMIT_S, env=ENVIRONMENT, cwd=folder)
    assert finished.returncode == 0, finished.output


def distance(some: Weights, others: Weights) -> float:
    """Return the norm of the difference of all weights over the norm of the others."""
    assert some.keys() == others.keys()
    mine, true = (np.concatenate([found[name].ravel() for name in others]) for found in (some, others))
    return float(np.linalg.norm(mine - true) / np.linalg.norm(true))


@pytest.mark.parametrize("origin", ORIGINS)
def test_loop_and_job_end_at_the_same_weights(folder, job, origin):
    framework, file = ORIGINS[origin]
    require(framework)
    if origin == "DeepSpeed" and find_spec("deepspeed") is None:
        skip_or_fail("torch", "deepspeed is not installed (tests/parity/install_peers.sh installs it)")
    start([line for line in START if file in line or line.startswith("CLUSTER=")], folder)
    with np.load(folder / f"{file}.npz") as trained:
        assert distance(dict(trained), job(framework)) <= TOLERANCE


def test_other_weights_are_far_apart(job):
    require("torch")
    require("tensorflow")
    # The same job from the other framework's first weights.
    assert distance(job("torch"), job("tensorflow")) > 0.1
