"""Dry runs: a job trained for a moment by processes that do not communicate, to see what a step and a rank take."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import ConfigError
from hvdtrain.forecast.dry_job import write_job
from hvdtrain.forecast.side_by_side import Company
from hvdtrain.model_size import ModelSize, model_size
from hvdtrain.timed_run import TimedRun, launch_words, require_success, take_run, threads_environ, train_words


@dataclass(frozen=True)
class DryRequest:
    """What to try.

    Attributes:
        num_processes: Processes side by side on this machine.
        share: Samples of each and update.
        batch_size: Samples per pass.
        passes: Passes per update.
    """

    num_processes: int
    share: int
    batch_size: int
    passes: int


@dataclass(frozen=True)
class DryRun:
    """What a dry run took.

    Attributes:
        request: What was tried.
        step_s: Time of every step that counts, of all processes, sorted.
        pass_s: Forward and backward of one pass.
        memory_bytes: The most memory that a process had.
        model: Its size.
    """

    request: DryRequest
    step_s: tuple[float, ...]
    pass_s: float
    memory_bytes: int
    model: ModelSize

    def slowest_of(self, num_ranks: int) -> float:
        """Return the time of a step that waits for the slowest of ``num_ranks``, in seconds.

        The median of the largest of N independent draws is the quantile ``0.5 ** (1 / N)`` of one draw: the median
        itself for one rank. Beyond the measured steps it is the longest of them.
        """
        place: float = 0.5 ** (1 / num_ranks) * (len(self.step_s) - 1)
        low, part = int(place), place % 1
        above = self.step_s[min(low + 1, len(self.step_s) - 1)]
        return self.step_s[low] * (1 - part) + above * part


@dataclass(frozen=True)
class DryRunner:
    """Makes dry runs of one job.

    Attributes:
        job: The user's job file.
        framework: Of the run.
        options: More options of ``hvdtrain train``.
        num_local_ranks: Ranks that share the cores of a host.
        warm_up: Steps before the ones that count.
        num_steps: Steps that count, at least.
        seconds: Time that they take, at least.
    """

    job: Path
    framework: str
    options: tuple[str, ...]
    num_local_ranks: int
    warm_up: int = 5
    num_steps: int = 20
    seconds: float = 2.0

    def run(self, request: DryRequest) -> DryRun:
        """Train for a moment, and leave nothing behind.

        Raises:
            ConfigError: A process fails; the message holds the end of what it said.
        """
        with tempfile.TemporaryDirectory(prefix="hvdtrain-plan-") as name:
            folder = Path(name)
            commands = [self._command(request, folder, index) for index in range(request.num_processes)]
            run_together(commands, threads_environ(self.num_local_ranks), folder)
            runs = [take_run(folder / f"run-{index}") for index in range(request.num_processes)]
        return self._told(request, runs)

    def _command(self, request: DryRequest, folder: Path, index: int) -> list[str]:
        company = Company(folder, index, request.num_processes, self.warm_up, self.num_steps, self.seconds)
        job = folder / f"{self.job.stem}-{index}.py"
        write_job(self.job, company, job)
        many = 1000 * (self.warm_up + self.num_steps)  # the callback ends the run, unless the others are lost
        numbers = {
            "--global-batch-size": request.share,
            "--batch-size": request.batch_size,
            "--backward-passes-per-step": request.passes,
            "--max-steps": many,
            "--epochs": many,
        }
        words = [word for option, number in numbers.items() for word in (option, str(number))]
        words.append("--no-noise-scale")  # which takes two ranks
        return train_words(job, self.framework, folder / f"run-{index}", *self.options, *words)

    def _told(self, request: DryRequest, runs: Sequence[TimedRun]) -> DryRun:
        first = runs[0]
        if first.state is None or min(run.num_steps for run in runs) < self.warm_up + self.num_steps:
            raise ConfigError(
                f"plan: a dry run must make {self.warm_up + self.num_steps} steps, got "
                f"{min(run.num_steps for run in runs)}, where the job ends. Ask for fewer --steps."
            )
        # One step begins with the wait for the others, and the last ones may be without company.
        counted = sorted(ms / 1e3 for run in runs for ms in run.step_ms[self.warm_up : -2])
        pass_ms = max(run.split["forward and backward"] for run in runs) / request.passes
        memory = max(run.memory_bytes for run in runs)
        return DryRun(request, tuple(counted), pass_ms / 1e3, memory, model_size(first.state.signature()))


def run_together(commands: Sequence[Sequence[str]], environ: Mapping[str, str], folder: Path) -> None:
    """Run all commands at once, each as a launch of one rank; the first that fails ends the others.

    Args:
        commands: Programs and arguments.
        environ: Of all.
        folder: For what they say.

    Raises:
        ConfigError: One ends with a code other than 0; the message holds the end of what it said.
    """
    logs = [folder / f"said-{index}" for index in range(len(commands))]
    with _started(commands, environ, logs) as running:
        while None in (codes := [process.poll() for process in running]) and not any(codes):
            time.sleep(0.02)
    for command, code, log in zip(commands, codes, logs, strict=True):
        require_success("plan", 1, command, code or 0, log.read_text(errors="replace"))


@contextmanager
def _started(
    commands: Sequence[Sequence[str]], environ: Mapping[str, str], logs: Sequence[Path]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command, log in zip(commands, logs, strict=True):
            with log.open("wb") as said:
                running.append(
                    subprocess.Popen(  # noqa: S603  # our own program
                        launch_words(1, command), env=dict(environ), stdin=subprocess.DEVNULL, stdout=said, stderr=said
                    )
                )
        yield running
    finally:
        for process in running:
            process.kill()  # a launcher that is killed takes its rank with it; one that has ended does not mind
        for process in running:
            process.wait()
