"""The cluster under test: what a person does with docker/cluster.sh, and a look inside its hosts."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tests.harness import Finished, Launch, run_command, start_command

PROJECT = Path(__file__).parents[2]
SCRIPT = PROJECT / "docker/cluster.sh"
IMAGE = "hvdtrain-test"
HVDTRAIN = "/opt/hvdtrain/.venv/bin/hvdtrain"
#: A launch on a machine whose two cores hold all hosts; TensorFlow alone takes half a minute to load.
TIMEOUT_S = 300
#: What runs in a host at rest: docker's init, the server, and an ssh session that has just ended.
_AT_REST = re.compile(r"(/sbin/docker-init|sshd:|/usr/sbin/sshd|ssh -o ConnectTimeout=3 localhost true|\[)")


@dataclass(frozen=True)
class Cluster:
    """A cluster of this name; ``runs`` is the folder that all its hosts see."""

    name: str
    runs: Path

    def script(self, *words: str, timeout_s: float = TIMEOUT_S) -> Finished:
        """Run docker/cluster.sh to its end."""
        return run_command([str(SCRIPT), *words], timeout_s=timeout_s, env=self.env)

    def start_script(self, *words: str) -> Any:
        """Start docker/cluster.sh, as ``start_command`` does."""
        return start_command([str(SCRIPT), *words], env=self.env)

    @property
    def env(self) -> dict[str, str]:
        """Settings of docker/cluster.sh."""
        return {"HVDTRAIN_CLUSTER": self.name, "HVDTRAIN_IMAGE": IMAGE, "HVDTRAIN_RUNS": str(self.runs)}

    def up(self, *options: str) -> None:
        """Bring the cluster up, or back to two workers that answer."""
        finished = self.script("up", "--workers", "2", *options, timeout_s=1200)
        assert finished.returncode == 0, finished.output[-6000:]

    def command(self, host: str, *words: str, user: str = "trainer") -> list[str]:
        """Return the command that runs a program on a host."""
        return ["docker", "exec", "--user", user, self.container(host), *words]

    def run(self, host: str, *words: str, user: str = "trainer", timeout_s: float = TIMEOUT_S) -> Finished:
        """Run a program on a host to its end."""
        return run_command(self.command(host, *words, user=user), timeout_s=timeout_s)

    def launch(self, *words: str, hosts: str = "worker1:2,worker2:2", np: int = 4, options: Sequence[str] = ()) -> Any:
        """Start ``hvdtrain launch`` on the head."""
        launcher = [HVDTRAIN, "launch", "-np", str(np), "-H", hosts, *options, "--"]
        return start_command(self.command("head", *launcher, *words))

    def train(self, run: str, *options: str, job: str = "runs/slow_digits.py") -> list[str]:
        """Return the program of a rank: three epochs of digits, saved every ten steps."""
        saving = ["--epochs", "3", "--save-every-steps", "10"]
        return ["hvdtrain", "train", job, "--framework", "torch", "--run-dir", f"runs/{run}", *saving, *options]

    def container(self, host: str) -> str:
        """Return the id of a host's container, of a dead one too."""
        labels = {"com.docker.compose.project": self.name, "com.docker.compose.service": host}
        filters = [word for label, value in labels.items() for word in ("--filter", f"label={label}={value}")]
        found = run_command(["docker", "ps", "-aq", *filters], timeout_s=60).stdout.split()
        assert len(found) == 1, f"{host}: {found}"
        return found[0]

    def programs(self, host: str) -> list[str]:
        """Return what runs on a host beside its server."""
        finished = run_command(["docker", "top", self.container(host), "-eo", "pid,args"], timeout_s=60)
        lines = [line.split(maxsplit=1)[1] for line in finished.stdout.splitlines()[1:]]
        return [line for line in lines if not _AT_REST.match(line)]

    def rows(self, run: str) -> list[dict[str, Any]]:
        """Return the rows that a run has written so far."""
        path = self.runs / run / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def summary(self, run: str) -> dict[str, Any]:
        """Return the summary of a finished run."""
        found: dict[str, Any] = json.loads((self.runs / run / "summary.json").read_text())
        return found

    def steps(self, run: str) -> list[int]:
        """Return the steps of the checkpoints that a run has committed."""
        return sorted(int(path.name[5:]) for path in (self.runs / run / "checkpoints").glob("step-????????"))

    def weights(self, run: str) -> dict[str, np.ndarray]:
        """Return the weights of a run's newest checkpoint."""
        newest = self.steps(run)[-1]
        return load_file(self.runs / run / f"checkpoints/step-{newest:08}" / "model.safetensors")

    @contextmanager
    def slowed(self) -> Iterator[Callable[[], None]]:
        """Let runs/slow_digits.py take its time until the block ends, or the function given is called."""
        mark = self.runs / "slow"
        mark.touch()
        try:
            yield mark.unlink
        finally:
            mark.unlink(missing_ok=True)


def wait_until(condition: Callable[[], Any], launch: Launch, *, timeout_s: float = TIMEOUT_S) -> None:
    """Wait for a condition; fail when the launch ends first, or the time does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert launch.process.poll() is None, f"ended too early:\n{launch.stdout()}{launch.stderr()}"
        assert time.monotonic() < deadline, f"not there after {timeout_s:g} s:\n{launch.stdout()}{launch.stderr()}"
        time.sleep(0.2)


def left_of(cluster: Cluster) -> list[str]:
    """Return what the engine still holds of a cluster; its keys lie in a volume."""
    label = f"label=com.docker.compose.project={cluster.name}"
    lists = (["ps", "-aq"], ["network", "ls", "-q"], ["volume", "ls", "-q"])
    return [
        f"{words[0]} {name}"
        for words in lists
        for name in run_command(["docker", *words, "--filter", label], timeout_s=60).stdout.split()
    ]
