"""Turn a launch request into one mpirun command, in the words of four kinds of mpirun.

It knows no framework and never starts MPI in its own process, so that a launch begins at once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import ConfigError
from hvdtrain.launch.hosts import Host, join_hosts, parse_hostfile, parse_hosts
from hvdtrain.launch.ssh import SSH_ARGS, require_on_path
from hvdtrain.settings import FOR_MPI, FOR_PROCESS

EXAMPLE = "hvdtrain launch -np 2 -- python train.py"

#: What remote ranks receive too; local ranks inherit everything.
EXPORTED = re.compile(
    r"(HOROVOD|OMPI_MCA|OMP|HVDTRAIN|TF|NCCL|MKL|CUDA|KERAS)_\w+|PYTHON\w*|PATH|LD_LIBRARY_PATH|GLIBC_TUNABLES"
)

#: What a launch sets for all ranks.
SETTINGS = {**FOR_MPI, **FOR_PROCESS}

#: Each of these says that a batch system, or the user, has chosen how mpirun reaches the hosts.
OWN_TRANSPORT = re.compile(
    "SLURM_JOB_ID|PBS_JOBID|LSB_JOBID|PE_HOSTFILE|(OMPI|PRTE)_MCA_plm|(I_MPI_)?HYDRA_(LAUNCH|BOOTSTRAP)"
)


@dataclass(frozen=True)
class LaunchRequest:
    """What to start, and where; refuses with one ConfigError what mpirun could not run.

    Attributes:
        num_ranks: Processes of the job, from 1 to the slots of all hosts.
        hosts: Machines in the order in which ranks fill them, each named once.
        command: Program and arguments of each rank.
        exported: Names of the variables that remote ranks receive too.
        has_ssh: Whether mpirun reaches a host by plain ssh.
        is_root: Whether root launches, which Open MPI must be told to allow.
    """

    num_ranks: int
    hosts: tuple[Host, ...]
    command: tuple[str, ...]
    exported: tuple[str, ...] = ()
    has_ssh: bool = False
    is_root: bool = False

    def __post_init__(self) -> None:
        """Collect every problem, then raise once."""
        problems = []
        if self.num_ranks < 1:
            problems.append(f"-np must be at least 1, got {self.num_ranks}. For example: {EXAMPLE}.")
        for name, times in Counter(host.name for host in self.hosts).items():
            if times > 1:
                total = sum(host.slots for host in self.hosts if host.name == name)
                cure = f"Add up its slots, for example -H {name}:{total}."
                problems.append(f"each host must be named once, got {name!r} {times} times. {cure}")
        num_slots = sum(host.slots for host in self.hosts)
        if self.num_ranks > num_slots:
            first, *others = self.hosts
            larger = Host(first.name, first.slots + self.num_ranks - num_slots)
            cure = f"Give the hosts more slots, for example -H {join_hosts((larger, *others))}."
            got = f"got -np {self.num_ranks} and {num_slots} in {join_hosts(self.hosts)!r}"
            problems.append(f"-np must be at most the slots of all hosts, {got}. {cure}")
        if not self.command:
            problems.append(f"a program must follow --, got none. For example: {EXAMPLE}.")
        if problems:
            raise ConfigError(f"launch: {' '.join(problems)}")


def make_request(
    num_ranks: int,
    command: Sequence[str],
    *,
    hosts: str | None = None,
    hostfile: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> LaunchRequest:
    """Build a request from ``-np``, ``-H``, ``--hostfile`` and the command, still as typed.

    Without hosts all ranks run here, also when they are more than the cores. What breaks a rule is
    a ConfigError.
    """
    if hosts is not None and hostfile is not None:
        got = f"got -H {hosts!r} and --hostfile {str(hostfile)!r}"
        raise ConfigError(f"launch: hosts must come from one option, {got}. Leave one of them out.")
    places: tuple[Host, ...] = (Host("localhost", max(num_ranks, 1)),)
    if hosts is not None:
        places = parse_hosts(hosts)
    elif hostfile is not None:
        try:
            places = parse_hostfile(hostfile.read_text(), hostfile)
        except (OSError, UnicodeDecodeError) as error:
            rule = f"--hostfile must be a readable text file, got {str(hostfile)!r} ({error})"
            raise ConfigError(f"launch: {rule}. Check the path.") from error
    is_local = all(host.is_local for host in places)
    return LaunchRequest(
        num_ranks,
        places,
        resolve_program(command),
        exported=tuple(sorted(filter(EXPORTED.fullmatch, {**SETTINGS, **environ}))),
        has_ssh=not is_local and not any(map(OWN_TRANSPORT.match, environ)),
        is_root=os.geteuid() == 0,
    )


def resolve_program(command: Sequence[str]) -> tuple[str, ...]:
    """Replace ``python`` and ``hvdtrain`` by the launching interpreter.

    Workers then run in this environment even when its ``bin`` is missing from PATH (horovod#205).
    """
    program = command[0] if command else None
    if program == "hvdtrain":
        return (sys.executable, "-m", "hvdtrain", *command[1:])
    return (sys.executable, *command[1:]) if program in ("python", "python3") else tuple(command)


def detect_flavour(version_text: str) -> str:
    """Return openmpi4 (or older), openmpi5 (or newer), mpich or intel, from ``mpirun --version``."""
    if "Intel(R) MPI" in version_text:
        return "intel"
    # MPICH 5 no longer says MPICH; its process manager says HYDRA.
    if "HYDRA" in version_text or "MPICH" in version_text:
        return "mpich"
    found = re.search(r"\((?:Open MPI|OpenRTE)\)\s+(\d+)\.", version_text)
    if found:
        return "openmpi5" if int(found[1]) >= 5 else "openmpi4"
    first_line = (version_text.strip().splitlines() or [""])[0]
    raise ConfigError(
        f"launch: mpirun must be of Open MPI, MPICH or Intel MPI, got {first_line!r}. "
        "Put one of these first on PATH; docker/install.sh installs Open MPI."
    )


def build_mpirun_command(request: LaunchRequest, flavour: str) -> list[str]:
    """Return the command that starts the ranks, in the words of one kind of mpirun."""
    names = ["-genvlist", ",".join(request.exported)] if request.exported else []
    if flavour == "intel":
        return _build_intel_command(request, names)
    num_ranks, hosts = str(request.num_ranks), join_hosts(request.hosts)
    if flavour == "mpich":
        placement = ["-np", num_ranks, "-hosts", hosts, "-bind-to", "none", "-map-by", "slot"]
        return ["mpirun", *placement, *names, *request.command]
    command = ["mpirun", "--allow-run-as-root"] if request.is_root else ["mpirun"]
    command += ["-np", num_ranks, "-H", hosts, "--bind-to", "none", "--map-by", "slot"]
    if flavour == "openmpi4":
        command += ["-mca", "pml", "ob1", "-mca", "btl", "^openib"]  # as horovodrun does
    if request.has_ssh:
        option = ["-mca", "plm_rsh_args"] if flavour == "openmpi4" else ["--prtemca", "plm_ssh_args"]
        command += [*option, " ".join(SSH_ARGS)]
    for name in request.exported:
        command += ["-x", name]
    return [*command, *request.command]


def find_added(request: LaunchRequest, flavour: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that mpirun needs beyond those of the launcher's environment."""
    added = {name: value for name, value in SETTINGS.items() if name not in environ}
    if flavour == "mpich" and request.has_ssh:
        added["HYDRA_LAUNCHER_EXTRA_ARGS"] = " ".join(SSH_ARGS)  # MPICH has no option for these
    return added


def find_flavour() -> str:
    """Ask the mpirun on PATH what it is; a missing or unknown one is a ConfigError."""
    require_on_path("mpirun")
    command = ["mpirun", "--version"]
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603  # the MPI that the user chose
    return detect_flavour(done.stdout + done.stderr)


def _build_intel_command(request: LaunchRequest, names: Sequence[str]) -> list[str]:
    command = ["mpirun"]
    if request.has_ssh:
        command += ["-bootstrap", "ssh", "-bootstrap-exec-args", " ".join(SSH_ARGS)]
    command += [*names, "-genv", "I_MPI_PIN", "0"]
    # -hosts of Intel MPI takes no slots, so each host gets a group of ranks of its own.
    left = request.num_ranks
    for host in request.hosts:
        num_ranks = min(host.slots, left)
        if num_ranks:
            separator = [":"] if left < request.num_ranks else []
            command += [*separator, "-n", str(num_ranks), "-host", host.name, *request.command]
        left -= num_ranks
    return command
