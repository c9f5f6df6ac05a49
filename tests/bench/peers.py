"""The same models, sizes, data and threads under hvdtrain and its peers, interleaved, as ratios of medians.

    bash tests/bench/peers.sh --framework torch --sizes tiny,small,medium --accumulation 1,4

One process takes the share of one rank, so that its ratio is the efficiency of weak scaling.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.settings import FOR_HOROVOD, FOR_HOROVOD_ON_CPU, FOR_MPI, FOR_PROCESS, FOR_TORCH

PROJECT = Path(__file__).parents[2]
CONTENDERS = "tests.bench.contenders"
BIN = Path(sys.executable).parent
LIMIT_S = 900
MARK, MEMORY_MARK = "bench: ", "memory: "

#: Samples of a rank's micro-batch: windows of 64 bytes, or images. Half at the largest size, where reduction counts.
BATCH = {"gpt": {"tiny": 8, "small": 8, "medium": 4}, "mlp": {"tiny": 64, "small": 64, "medium": 64}}
JOBS = {"gpt": "examples/shakespeare.py", "mlp": "tests/bench/jobs/mlp.py"}

NAMES = {
    "torch": ("ours", "one", "by_hand", "horovod", "ddp", "deepspeed"),
    "tensorflow": ("ours", "one", "horovod", "mirrored"),
}


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    framework: str
    job: str
    size: str
    accumulation: int
    warm_up: int
    num_steps: int

    def options(self) -> list[str]:
        told = {"--job": self.job, "--size": self.size, "--batch-size": BATCH[self.job][self.size]}
        told |= {"--accumulation": self.accumulation, "--warm-up": self.warm_up, "--steps": self.num_steps}
        return [str(word) for pair in told.items() for word in pair]


def time_of(case: Case, name: str) -> list[float]:
    """Return the ms of each step of one launch."""
    return read(LAUNCHERS[name](case, name))


def memory_of(case: Case, name: str) -> list[int]:
    """Return the most bytes that each rank of one launch has held, by rank."""
    return read_memory(LAUNCHERS[name](case, name))


def ours(case: Case, name: str) -> str:
    words = [*HVDTRAIN, "launch", "-np", "2", "--", "python", "-m", module(case, name), *case.options()]
    return run(words)


def alone(case: Case, name: str) -> str:
    return run([sys.executable, "-m", module(case, name), *case.options()])


def by_hand(case: Case, name: str) -> str:
    """Start with every setting that hvdtrain makes by itself."""
    words = ["mpirun", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "-np", "2", "--bind-to", "none"]
    ours = {**FOR_MPI, **FOR_HOROVOD, **FOR_HOROVOD_ON_CPU, **FOR_TORCH, **FOR_PROCESS}
    return run([*words, sys.executable, "-m", module(case, name), *case.options()], **ours)


def under_horovodrun(case: Case, name: str) -> str:
    words = [str(BIN / "horovodrun"), "-np", "2", sys.executable, "-m", module(case, name), *case.options()]
    return run(words, PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}")


def under_torchrun(case: Case, name: str) -> str:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    return run([*words, module(case, name), *case.options()])


def under_tf_config(case: Case, name: str) -> str:
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    workers = [f"127.0.0.1:{port}" for port in ports]
    started = []
    for index in (1, 0):
        config = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
        words = [sys.executable, "-m", module(case, name), *case.options()]
        started.append(subprocess.Popen(words, env=environ(TF_CONFIG=config), stdout=subprocess.PIPE, text=True))
    try:
        return [process.communicate(timeout=LIMIT_S)[0] for process in started][1]
    finally:
        for process in started:
            process.kill()


LAUNCHERS = {
    "ours": ours,
    "by_hand": by_hand,
    "one": alone,
    "horovod": under_horovodrun,
    "ddp": under_torchrun,
    "deepspeed": under_torchrun,
    "mirrored": under_tf_config,
}
HVDTRAIN = (sys.executable, "-m", "hvdtrain")


def module(case: Case, name: str) -> str:
    return f"{CONTENDERS}.{case.framework}_{name}"


def environ(**more: str) -> dict[str, str]:
    quiet = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    return {**os.environ, **quiet, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(PROJECT), **more}


def run(words: Sequence[str], **more: str) -> str:
    done = subprocess.run(
        words, env=environ(**more), cwd=PROJECT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\nended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def read(text: str) -> list[float]:
    """Return the times behind the mark, wherever a launcher has put it in its line."""
    line = next(line for line in text.splitlines() if MARK in line)
    return json.loads(line.partition(MARK)[2])


def read_memory(text: str) -> list[int]:
    """Return the bytes behind the marks, by rank; launchers mix the lines of ranks but never cut one."""
    told = dict(map(int, words) for words in re.findall(rf"{MEMORY_MARK}(\d+) (\d+)", text))
    return [told[rank] for rank in sorted(told)]


def measure(case: Case, names: Sequence[str], repeats: int) -> dict[str, float]:
    """Return the median step of each contender, from launches in turn."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            times[name] += time_of(case, name)
            print(
                f"  {case.framework} {case.job} {case.size} x {case.accumulation}: {name}", file=sys.stderr, flush=True
            )
    return {name: statistics.median(found) for name, found in times.items()}


def table(results: Sequence[tuple[Case, dict[str, float]]]) -> str:
    """Return a table in Markdown: ms of ours, and ours over each contender."""
    others = list(dict.fromkeys(name for _, medians in results for name in medians if name != "ours"))
    lines = [f"| job | passes | ours, ms | {' | '.join(f'ours / {name}' for name in others)} |"]
    lines.append("|---" * (3 + len(others)) + "|")
    for case, medians in results:
        ratios = [f"{medians['ours'] / medians[name]:.2f}" if name in medians else "" for name in others]
        told = [f"{case.framework} {case.job} {case.size}", str(case.accumulation), f"{medians['ours']:.1f}", *ratios]
        lines.append(f"| {' | '.join(told)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=NAMES, required=True)
    parser.add_argument("--job", choices=JOBS, default="gpt")
    parser.add_argument("--sizes", default="tiny,small")
    parser.add_argument("--accumulation", default="1")
    parser.add_argument("--contenders", help="names, ours among them; all when left out")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    names = options.contenders.split(",") if options.contenders else NAMES[options.framework]
    results = []
    for size in options.sizes.split(","):
        for accumulation in map(int, options.accumulation.split(",")):
            case = Case(options.framework, options.job, size, accumulation, options.warm_up, options.steps)
            results.append((case, measure(case, names, options.repeats)))
    print(table(results))


if __name__ == "__main__":
    main()
