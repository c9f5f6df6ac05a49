"""The kill matrix: who is killed and when, what is left then, and what it comes to when it is resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdtrain import checkpoint
from hvdtrain.errors import CheckpointError
from tests.faults.equality import Difference, compare_bits, compare_numbers
from tests.faults.kit import Fault
from tests.faults.runs import JOB
from tests.harness import Launch, mpirun, mpirun_command, start_command

PROJECT = Path(__file__).parents[2]
FRAMEWORKS = ("torch", "tensorflow")
TARGETS = ("rank-0", "rank-1", "launcher")
WAYS = ("same ranks", "other ranks", "other framework")
#: What may go wrong with a kill, and how the count tells it.
PROBLEMS = {
    "hang": "hangs",
    "exit code": "wrong exit codes",
    "left over": "with processes left",
    "checkpoint": "with lost or unreadable checkpoints",
    "kill": "that did not come",
}
#: Point of the kit, step, and the newest checkpoint that must be left.
POINTS = {
    "start": ("start", 1, None),
    "mid-step": ("before", 5, 3),
    "mid-save": ("save", 6, 3),
    "between-epochs": ("epoch", 8, 6),
    "evaluation": ("evaluation", 8, 6),
    "last-step": ("after", 12, 9),
}
IS_FULL = os.environ.get("HVDTRAIN_FULL", "") not in ("", "0")
#: From the start of a launch to its fault, on a machine that is busy with something else.
START_S = 240
#: From a kill to the return of the launcher.
END_S = 20
#: Many runs in one launch; each framework resumes 36 on two ranks when every pair is run.
BATCH_S = 900
#: Faults that end nothing; these runs are made in the launch of the undisturbed one.
HARMLESS = {
    "slow": Fault("slow", 1, "before", 0, ""),
    "non-finite": Fault("non-finite", 1, "", 6, ""),
    "weightless": Fault("weightless", 0, "", 6, ""),
}


@dataclass(frozen=True)
class Kill:
    """One cell of the matrix."""

    framework: str
    target: str
    point: str

    def __str__(self) -> str:
        """Name the cell."""
        return f"{self.framework}-{self.target}-{self.point}"

    @property
    def _number(self) -> int:
        return FRAMEWORKS.index(self.framework) + TARGETS.index(self.target) + list(POINTS).index(self.point)

    @property
    def newest(self) -> int | None:
        """Step of the newest checkpoint that must be left; ``None`` for no checkpoint."""
        return POINTS[self.point][2]

    @property
    def launcher(self) -> str:
        """What starts this job; each kind of launcher starts every second cell."""
        return ("mpirun", "launch")[self._number % 2]

    @property
    def ways(self) -> tuple[str, ...]:
        """How it is resumed: one way in rotation, a Latin square over targets and points; or all of them."""
        return WAYS if IS_FULL else (WAYS[self._number % len(WAYS)],)

    def start_of(self, way: str) -> tuple[str, int]:
        """Return the framework and the number of ranks of a resume."""
        index = FRAMEWORKS.index(self.framework)
        if way == "other framework":
            return FRAMEWORKS[1 - index], 2
        other = (1, 3)[(index + list(POINTS).index(self.point)) % 2]
        return self.framework, 2 if way == "same ranks" else other

    def fault(self, mark: Path) -> Fault:
        """Return what the kit does for this cell."""
        point, step, _ = POINTS[self.point]
        if (self.target, point) == ("rank-1", "before"):
            point = "after"
        kind = f"kill-{self.launcher}" if self.target == "launcher" else "kill"
        return Fault(kind, int(self.target == "rank-1"), point, step, str(mark))


KILLS = [Kill(framework, target, point) for framework in FRAMEWORKS for target in TARGETS for point in POINTS]


@dataclass
class Lab:
    """Kills and resumes each thing once, however often a test asks; counts what went wrong."""

    folder: Path
    killed: dict[Kill, dict[str, str]] = field(default_factory=dict)
    #: Seconds from a fault that ends its job to the return of the launcher, by kind.
    ended_s: dict[str, list[float]] = field(default_factory=dict)
    resumed: dict[tuple[Kill, str], Difference] = field(default_factory=dict)
    outputs: dict[tuple[str, int], str] = field(default_factory=dict)

    # ------------------------------------------------------------------ kills
    def kill(self, kill: Kill) -> dict[str, str]:
        """Return what went wrong by kind: hang, exit code, left over, checkpoint; empty when nothing did."""
        if kill not in self.killed:
            problems: dict[str, str] = {}
            fault = kill.fault(self.folder / f"{kill}.mark")
            with start_command(self.command(kill), cwd=PROJECT, env={"OMP_NUM_THREADS": "1", **fault.env()}) as launch:
                self._watch(launch, kill, fault, problems)
            self._look_at_checkpoints(kill, problems)
            for way in kill.ways[:-1]:
                shutil.copytree(self.folder / str(kill), self.run_dir(kill, way))
            self.killed[kill] = problems
        return self.killed[kill]

    def command(self, kill: Kill) -> list[str]:
        """Return the command line of a cell."""
        options = ["train", str(JOB), "--framework", kill.framework, "--run-dir", str(self.folder / str(kill))]
        program = [sys.executable, "-m", "hvdtrain"]
        if kill.launcher == "launch":
            return [*program, "launch", "-np", "2", "--", *program, *options]
        return mpirun_command(2, *program, *options)

    def run_dir(self, kill: Kill, way: str) -> Path:
        """Return where a resume goes on: the run folder itself, or a copy of it for all ways but the last."""
        return self.folder / (str(kill) if way == kill.ways[-1] else f"{kill}-{way.replace(' ', '-')}")

    def _watch(self, launch: Launch, kill: Kill, fault: Fault, problems: dict[str, str]) -> None:
        deadline = time.monotonic() + START_S
        while fault.time is None and launch.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if fault.time is None:
            problems["kill"] = f"it did not come\n{launch.stdout()}{launch.stderr()}"
            return
        try:
            finished = launch.finish(timeout_s=END_S)
        except AssertionError as error:
            problems["left over" if "left these processes" in str(error) else "hang"] = str(error)
            return
        self.note_end(fault)
        wanted = finished.returncode == -signal.SIGKILL if kill.target == "launcher" else finished.returncode > 0
        if not wanted:
            problems["exit code"] = f"{finished.returncode}\n{finished.output}"

    def note_end(self, fault: Fault) -> float:
        """Return the seconds since a fault whose job has just ended, and keep them for the report."""
        assert fault.time is not None, "the fault did not come"
        seconds = time.time() - fault.time
        self.ended_s.setdefault(fault.kind, []).append(seconds)
        return seconds

    def _look_at_checkpoints(self, kill: Kill, problems: dict[str, str]) -> None:
        paths = checkpoint.list_checkpoints(self.folder / str(kill) / "checkpoints")
        wanted = [checkpoint.checkpoint_name(step) for step in range(3, (kill.newest or 0) + 1, 3)]
        if [path.name for path in paths] != wanted:
            problems["checkpoint"] = f"there are {[path.name for path in paths]}, expected {wanted}"
        for path in paths:
            try:
                checkpoint.load(path)
            except CheckpointError as error:
                problems["checkpoint"] = str(error)

    # ------------------------------------------------------------------ resumes
    def resume(self, kill: Kill, way: str) -> Difference:
        """Return how far the resumed run is from the undisturbed one of the framework that was killed."""
        self.kill(kill)
        undisturbed = self.run(kill.framework, "undisturbed")
        if (kill, way) not in self.resumed:
            self._launch(*kill.start_of(way))
        compare = compare_bits if way == "same ranks" else compare_numbers
        self.resumed[kill, way] = compare(undisturbed, self.run_dir(kill, way))
        return self.resumed[kill, way]

    def told(self, kill: Kill, way: str) -> str:
        """Return what was printed while the cell was resumed, and others with it."""
        return self.outputs[kill.start_of(way)]

    def run(self, framework: str, name: str) -> Path:
        """Return the folder of a run on two ranks that nothing ended: undisturbed, or one of the harmless faults."""
        folder = self.folder / f"{framework}-{name}"
        if (framework, 2) not in self.outputs:
            self._launch(framework, 2)
        assert (folder / "summary.json").exists(), self.outputs[framework, 2][-8000:]
        return folder

    def _launch(self, framework: str, size: int) -> None:
        """Resume in one launch everything killed so far that goes on with this framework and number of ranks."""
        resumes = [
            self.run_dir(kill, way)
            for kill in self.killed
            for way in kill.ways
            if kill.start_of(way) == (framework, size) and (kill, way) not in self.resumed
        ]
        runs = [(str(folder), ["--resume"], {}) for folder in resumes if not (folder / "summary.json").exists()]
        if size == 2 and (framework, 2) not in self.outputs:
            runs += [(str(self.folder / f"{framework}-undisturbed"), [], {})]
            for name, fault in HARMLESS.items():
                folder = self.folder / f"{framework}-{name}"
                env = fault.at(mark=f"{folder}.mark").env()
                runs += [(str(folder), ["--on-nonfinite", "skip"], env)]
        if runs:
            self.outputs[framework, size] = self.outputs.get((framework, size), "") + self._make(framework, size, runs)

    def _make(self, framework: str, size: int, runs: list[tuple[str, list[str], dict[str, str]]]) -> str:
        listed = self.folder / f"{framework}-{size}.json"
        listed.write_text(json.dumps(runs))
        script = ["python", str(Path(__file__).with_name("runs.py")), framework, str(listed)]
        path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
        try:
            finished = mpirun(size, *script, timeout_s=BATCH_S, cwd=PROJECT, env={"PYTHONPATH": path})
        except AssertionError as error:
            return str(error)
        return finished.output

    # ------------------------------------------------------------------ the count
    def tally(self) -> dict[str, Any]:
        """Return what :func:`count` needs, in values that one process can send to another."""
        return {
            "ended_s": self.ended_s,
            "problems": [list(problems) for problems in self.killed.values()],
            "resumed": [
                [way, difference.fault is not None, float(difference.loss), float(difference.tensors)]
                for (_, way), difference in self.resumed.items()
            ],
        }


def count(tallies: Sequence[dict[str, Any]]) -> list[str]:
    """Return the count of everything in these labs so far, in lines."""
    ended_s: dict[str, float] = {}
    for kind, seconds in ((kind, max(all_s)) for tally in tallies for kind, all_s in tally["ended_s"].items()):
        ended_s[kind] = max(seconds, ended_s.get(kind, 0.0))
    ended = [f"{kind} {seconds:.1f} s" for kind, seconds in sorted(ended_s.items())]
    lines = [f"longest from a fault to the return of the launcher: {', '.join(ended)}"] if ended else []
    killed = [problems for tally in tallies for problems in tally["problems"]]
    if not killed:
        return lines
    wrong = Counter(kind for problems in killed for kind in problems)
    lines += [f"{len(killed)} kills: {', '.join(f'{wrong[kind]} {text}' for kind, text in PROBLEMS.items())}"]
    for way in WAYS:
        found = [rest for tally in tallies for got, *rest in tally["resumed"] if got == way]
        if found:
            are_unequal, losses, tensors = zip(*found, strict=True)
            largest = f"loss {max(losses):.1e}, weights and slots {max(tensors):.1e}"
            apart = "same bits" if way == "same ranks" else largest
            lines.append(f"{len(found)} resumed, {way}: {sum(are_unequal)} unequal ({apart})")
    return lines
