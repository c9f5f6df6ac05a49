"""The same net from the same weights on the same samples under every peer, against the true trajectory and ours.

Truth is written out here in NumPy, in float64: the gradient of a step is the mean over all samples of its global
batch. Three scenarios: ``even``; ``ragged``, where the last global batch of an epoch holds 5 samples, 3 for one rank
and 2 for the other; and ``tail``, with two micro-batches per update and three in an epoch, the third one short.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.harness import Finished, mpirun, mpirun_command, require, run_command
from tests.harness.requirements import skip_or_fail

PROJECT = Path(__file__).parents[2]
JOB = PROJECT / "tests/parity/jobs/mlp.py"
#: Where the table is written as Markdown; it is printed in any case.
TABLE = "HVDTRAIN_PARITY_TABLE"
LIMIT_S = 120
#: Open MPI's ranks give way while they wait, because there may be fewer cores than ranks.
QUIET = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "OMPI_MCA_mpi_yield_when_idle": "1"}

NUM_STEPS, GLOBAL_BATCH, LR, MOMENTUM = 20, 16, 0.2, 0.9
#: Samples of an epoch, and micro-batches per update.
SCENARIOS = {"even": (48, 1), "ragged": (37, 1), "tail": (21, 2)}
WEIGHTS = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
#: Relative; the arithmetic of all peers is in float32.
TOLERANCE = 1e-5
#: What an inexact peer's weights are off by at least, relative to their norm.
CLEARLY_OFF = 1e-3


@dataclass(frozen=True)
class Trajectory:
    """Loss of each step before its update, and the final weights."""

    losses: np.ndarray
    weights: dict[str, np.ndarray]

    def loss_error(self, truth: Trajectory) -> float:
        """Return the largest difference of a loss, relative to the true one."""
        return float(np.max(np.abs(self.losses - truth.losses) / truth.losses))

    def weight_error(self, truth: Trajectory) -> float:
        """Return the norm of the difference of all weights, relative to the norm of the true ones."""
        mine, true = (np.concatenate([t.weights[name].ravel() for name in WEIGHTS]) for t in (self, truth))
        return float(np.linalg.norm(mine - true) / np.linalg.norm(true))


# ---------------------------------------------------------------- truth
def make_problem(num_samples: int, accumulation: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(20)
    shapes = {"fc1.weight": (16, 8), "fc1.bias": (16,), "fc2.weight": (4, 16), "fc2.bias": (4,)}
    return {
        **{name: rng.normal(0.0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()},
        "features": rng.normal(0.0, 1.0, (48, 8)).astype(np.float32)[:num_samples],
        "labels": rng.integers(0, 4, 48)[:num_samples],
        "num_steps": np.array(NUM_STEPS),
        "global_batch_size": np.array(GLOBAL_BATCH),
        "accumulation": np.array(accumulation),
        "lr": np.array(LR),
        "momentum": np.array(MOMENTUM),
    }


def true_trajectory(problem: dict[str, np.ndarray]) -> Trajectory:
    weights = {name: problem[name].astype(np.float64) for name in WEIGHTS}
    buffers = {name: np.zeros_like(array) for name, array in weights.items()}
    per_epoch = -(-len(problem["labels"]) // GLOBAL_BATCH)
    losses = []
    for step in range(NUM_STEPS):
        rows = slice((step % per_epoch) * GLOBAL_BATCH, (step % per_epoch + 1) * GLOBAL_BATCH)
        loss, gradients = loss_and_gradients(weights, problem["features"][rows], problem["labels"][rows])
        losses.append(loss)
        for name, gradient in gradients.items():
            buffers[name] = MOMENTUM * buffers[name] + gradient
            weights[name] = weights[name] - LR * buffers[name]
    return Trajectory(np.array(losses), weights)


def loss_and_gradients(
    weights: dict[str, np.ndarray], features: np.ndarray, labels: np.ndarray
) -> tuple[float, dict[str, np.ndarray]]:
    """Return mean softmax cross-entropy and its gradients for ``fc2 tanh(fc1 x)``."""
    x, picked = features.astype(np.float64), np.arange(len(labels))
    hidden = np.tanh(x @ weights["fc1.weight"].T + weights["fc1.bias"])
    logits = hidden @ weights["fc2.weight"].T + weights["fc2.bias"]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    loss = -np.log(probabilities[picked, labels]).mean()
    at_logits = probabilities.copy()
    at_logits[picked, labels] -= 1
    at_logits /= len(labels)
    at_hidden = (at_logits @ weights["fc2.weight"]) * (1 - hidden**2)
    gradients = (at_hidden.T @ x, at_hidden.sum(axis=0), at_logits.T @ hidden, at_logits.sum(axis=0))
    return loss, dict(zip(WEIGHTS, gradients, strict=True))


# ---------------------------------------------------------------- launches
Launcher = Callable[[Sequence[str]], Finished]


def alone(command: Sequence[str]) -> Finished:
    return run_command([sys.executable, *command], timeout_s=LIMIT_S, env=QUIET, cwd=PROJECT)


def under_mpi(command: Sequence[str]) -> Finished:
    return mpirun(2, "python", *command, timeout_s=LIMIT_S, env=QUIET, cwd=PROJECT)


def as_torchrun_does(command: Sequence[str]) -> Finished:
    (port,) = free_ports(1)
    shared = ("WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}")
    ranks = [(*shared, "GLOO_SOCKET_IFNAME=lo", f"RANK={rank}", f"LOCAL_RANK={rank}") for rank in range(2)]
    return start_workers(ranks, command)


def with_tf_config(command: Sequence[str]) -> Finished:
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    tasks = [{"cluster": cluster, "task": {"type": "worker", "index": index}} for index in range(2)]
    return start_workers([(f"TF_CONFIG={json.dumps(task)}",) for task in tasks], command)


def start_workers(environments: Sequence[Sequence[str]], command: Sequence[str]) -> Finished:
    """Start one process per environment; mpirun serves for its joint end alone, nothing in them knows MPI."""
    first, second = (["env", *changes, sys.executable, *command] for changes in environments)
    line = [*mpirun_command(1, *first), ":", "-np", "1", *second]
    return run_command(line, timeout_s=LIMIT_S, env={**QUIET, "DS_ACCELERATOR": "cpu"}, cwd=PROJECT)


def free_ports(count: int) -> list[int]:
    # All are held until all are known, so that no two are the same.
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@dataclass(frozen=True)
class Peer:
    """A script under ``peers/``, how it is started, and the scenarios that it gets right."""

    title: str
    framework: str
    script: str
    launch: Launcher
    num_ranks: int
    exact: tuple[str, ...]


#: Those on two ranks average the means of the ranks, so a sample of the shorter share weighs more. In ``tail``, DDP
#: and MultiWorkerMirroredStrategy also halve the gradient of the lone micro-batch; DeepSpeed keeps it for later.
PEERS = (
    Peer("one process", "torch", "one_process_torch", alone, 1, ("even", "ragged", "tail")),
    Peer("DistributedDataParallel", "torch", "ddp", as_torchrun_does, 2, ("even",)),
    Peer("DeepSpeed, ZeRO 0", "torch", "deepspeed_zero0", as_torchrun_does, 2, ("even",)),
    Peer("plain Horovod", "torch", "horovod_torch", under_mpi, 2, ("even",)),
    Peer("one process", "tensorflow", "one_process_tensorflow", alone, 1, ("even", "ragged", "tail")),
    Peer("MultiWorkerMirroredStrategy", "tensorflow", "multi_worker_mirrored", with_tf_config, 2, ("even",)),
    Peer("plain Horovod", "tensorflow", "horovod_tensorflow", under_mpi, 2, ("even",)),
)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


class Laboratory:
    """Trains each peer once, and ours once per scenario, when first asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.truths: dict[str, Trajectory] = {}
        self._launched: dict[tuple[str, ...], Finished | AssertionError] = {}
        for name, (num_samples, accumulation) in SCENARIOS.items():
            problem = make_problem(num_samples, accumulation)
            np.savez(self._problem(name), **problem)
            self.truths[name] = true_trajectory(problem)

    def peer(self, peer: Peer, scenario: str) -> Trajectory:
        """Return a peer's trajectory, its losses added over ranks; the weights are those of rank 0."""
        ranks = self.peer_ranks(peer, scenario)
        sums, counts = sum(rank["losses"] for rank in ranks).T
        return Trajectory(sums / counts, {name: ranks[0][name] for name in WEIGHTS})

    def peer_ranks(self, peer: Peer, scenario: str) -> list[dict[str, np.ndarray]]:
        """Return what each rank of a peer wrote."""
        require(peer.framework)
        if peer.script.startswith("deepspeed") and find_spec("deepspeed") is None:
            skip_or_fail("torch", "deepspeed is not installed (tests/parity/install_peers.sh installs it)")
        out = self.folder / peer.script
        out.mkdir(exist_ok=True)
        files = [str(self._problem(name)) for name in SCENARIOS]
        command = ("-m", f"tests.parity.peers.{peer.script}", *files, "--out", str(out))
        self._once((peer.script,), lambda: peer.launch(command))
        return [read_arrays(out / f"{scenario}-{rank}.npz") for rank in range(peer.num_ranks)]

    def ours(self, framework: str, scenario: str) -> Trajectory:
        """Return our own trajectory on two ranks."""
        require(framework)
        run = self.folder / f"ours-{framework}-{scenario}"
        command = ("-m", "hvdtrain", "train", str(JOB), "--framework", framework, "--run-dir", str(run))
        env = {**QUIET, "HVDTRAIN_PARITY_PROBLEM": str(self._problem(scenario))}
        self._once(("ours", framework, scenario), lambda: mpirun(2, "python", *command, timeout_s=LIMIT_S, env=env))
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        losses = [row["loss"] for row in rows if row["event"] == "train"]
        weights = load_file(run / f"checkpoints/step-{NUM_STEPS:08d}/model.safetensors")
        return Trajectory(np.array(losses), weights)

    def _problem(self, scenario: str) -> Path:
        return self.folder / f"{scenario}.npz"

    def _once(self, key: tuple[str, ...], launch: Callable[[], Finished]) -> None:
        if key not in self._launched:
            try:
                self._launched[key] = launch()
            except AssertionError as error:
                # Kept, so that a peer that hangs costs its limit once and not once per test.
                self._launched[key] = error
        finished = self._launched[key]
        if isinstance(finished, AssertionError):
            raise finished
        assert finished.returncode == 0, finished.output[-4000:]


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    return Laboratory(tmp_path_factory.mktemp("parity"))


def cases(kind: str) -> list[object]:
    """Return the pairs of peer and scenario that are exact, or inexact, or all that have two ranks."""
    return [
        pytest.param(peer, scenario, id=f"{peer.script}-{scenario}")
        for peer in PEERS
        for scenario in SCENARIOS
        if {"exact": scenario in peer.exact, "inexact": scenario not in peer.exact, "ranked": peer.num_ranks > 1}[kind]
    ]


# ---------------------------------------------------------------- tests
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_ours_on_two_ranks_follows_the_truth(laboratory, framework, scenario):
    ours, truth = laboratory.ours(framework, scenario), laboratory.truths[scenario]
    assert ours.losses.shape == (NUM_STEPS,)
    assert ours.loss_error(truth) <= TOLERANCE
    assert ours.weight_error(truth) <= TOLERANCE


@pytest.mark.parametrize(("peer", "scenario"), cases("exact"))
def test_exact_peer_follows_the_truth(laboratory, peer, scenario):
    trajectory, truth = laboratory.peer(peer, scenario), laboratory.truths[scenario]
    assert trajectory.losses.shape == (NUM_STEPS,)
    assert trajectory.loss_error(truth) <= TOLERANCE
    assert trajectory.weight_error(truth) <= TOLERANCE


@pytest.mark.parametrize(("peer", "scenario"), cases("inexact"))
def test_inexact_peer_leaves_the_truth(laboratory, peer, scenario):
    trajectory, truth = laboratory.peer(peer, scenario), laboratory.truths[scenario]
    # The first loss comes before any update, so the peer does train the same problem.
    assert trajectory.losses[0] == pytest.approx(truth.losses[0], rel=TOLERANCE)
    assert trajectory.weight_error(truth) >= CLEARLY_OFF


@pytest.mark.parametrize(("peer", "scenario"), cases("ranked"))
def test_peer_holds_equal_weights_on_its_ranks(laboratory, peer, scenario):
    first, second = laboratory.peer_ranks(peer, scenario)
    assert {name: np.array_equal(first[name], second[name]) for name in WEIGHTS} == dict.fromkeys(WEIGHTS, True)


def test_table_shows_every_peer_beside_ours(laboratory, capsys, tmp_path):
    rows = [row(laboratory, peer, scenario) for scenario in SCENARIOS for peer in PEERS]
    text = "\n".join([*HEAD, *rows]) + "\n"
    path = Path(os.environ.get(TABLE) or tmp_path / "table.md")
    path.write_text(text)
    with capsys.disabled():
        print(f"\n{text}", file=sys.stderr)  # what a process of pytest-xdist says there is seen
    assert [line.split(" | ")[1] for line in path.read_text().splitlines()[2:]] == 3 * [
        "one process, torch",
        "DistributedDataParallel, torch",
        "DeepSpeed, ZeRO 0, torch",
        "plain Horovod, torch",
        "one process, tensorflow",
        "MultiWorkerMirroredStrategy, tensorflow",
        "plain Horovod, tensorflow",
    ]


HEAD = (
    "| scenario | peer | true last loss | the peer's | ours | losses: the peer is off by | ours by "
    "| weights: the peer is off by | ours by |",
    "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
)


def row(laboratory: Laboratory, peer: Peer, scenario: str) -> str:
    truth = laboratory.truths[scenario]
    pair = laboratory.peer(peer, scenario), laboratory.ours(peer.framework, scenario)
    cells = [scenario, f"{peer.title}, {peer.framework}"]
    cells += [f"{trajectory.losses[-1]:.6f}" for trajectory in (truth, *pair)]
    cells += [f"{trajectory.loss_error(truth):.1e}" for trajectory in pair]
    cells += [f"{trajectory.weight_error(truth):.1e}" for trajectory in pair]
    return f"| {' | '.join(cells)} |"
