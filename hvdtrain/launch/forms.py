"""One launch in the words of other launchers: what ``hvdtrain launch --print`` prints.

Commands name this environment's interpreter, because the hosts share it; files for containers name programs as typed,
because the image has its own.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from string import Template

from hvdtrain.errors import ConfigError
from hvdtrain.launch.hosts import join_hosts
from hvdtrain.launch.mpirun import LaunchRequest, build_mpirun_command, find_added, find_flavour

#: What horovodrun needs under Open MPI 5, which no longer knows the ``-bind-to`` that it writes.
OPENMPI5_BINDING = "--binding-args=--bind-to none --map-by slot"


class _File(Template):
    """Text with fields ``@name``, because shells and Compose have a use of their own for ``$``."""

    delimiter = "@"


# Slurm sends its signal to the batch shell alone, which waits in 'wait' and so can pass it on at once.
_SLURM = _File("""\
#!/usr/bin/env bash
#SBATCH --job-name=hvdtrain
#SBATCH --nodes=@nodes
@nodelist#SBATCH --ntasks-per-node=@slots
#SBATCH --time=01:00:00
#SBATCH --signal=B:TERM@@120
#SBATCH --output=%x-%j.log
# Two minutes before its time is over the job gets SIGTERM: all ranks finish their step, save, and leave with 143.
# Submit it again with --resume among the options of 'hvdtrain train', and it goes on from there.
set -euo pipefail

export PATH=@programs:$PATH
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s/\\$/:$SLURM_NTASKS_PER_NODE/" | paste -sd, -)
hvdtrain launch -np @num_ranks -H "$hosts" -- @command &
launcher=$!
signalled=''
trap 'signalled=1; kill -TERM "$launcher"' TERM
code=0
wait "$launcher" || code=$?
while [ -n "$signalled" ]; do # the signal has ended 'wait', not the job
    signalled=''
    code=0
    wait "$launcher" || code=$?
done
exit "$code"
""")

_COMPOSE = _File("""\
# docker compose -p hvdtrain -f FILE up -d
# docker compose -p hvdtrain -f FILE exec head @command
# docker compose -p hvdtrain -f FILE down --volumes
# The image is docker/Dockerfile's: docker build -t hvdtrain -f docker/Dockerfile .
x-host: &host
  image: ${HVDTRAIN_IMAGE:-hvdtrain}
  init: true
  shm_size: 1gb # Open MPI and the loaders exchange data there; Docker's default of 64 MB is too small
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  networks: [cluster]
  volumes:
    - keys:/run/hvdtrain
    - ${HVDTRAIN_RUNS:-./runs}:/home/trainer/runs
    - ${HVDTRAIN_JOB_FOLDER:-./examples}:/home/trainer/jobs:ro
  healthcheck:
    test: [CMD, ssh, -o, ConnectTimeout=3, localhost, "true"]
    interval: 10s
    timeout: 5s
    retries: 6
  stop_grace_period: 1s

services:
  head: {<<: *host, hostname: head, environment: {HVDTRAIN_ROLE: head}}
@services

networks:
  cluster:

volumes:
  keys:
""")

_MPIJOB = _File("""\
# For the MPI Operator (kubeflow.org/v2beta1), with the image of docker/Dockerfile: kubectl apply -f FILE
# The runs lie on a volume claim of the name hvdtrain-runs, which must exist. A job that fails is started up to 3 times
# more, and goes on from its last checkpoint when --resume is among the options of 'hvdtrain train'.
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: hvdtrain
spec:
  slotsPerWorker: @slots
  sshAuthMountPath: /home/trainer/.ssh
  mpiImplementation: OpenMPI
  runPolicy:
    cleanPodPolicy: Running
    backoffLimit: 3
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          securityContext: {runAsUser: 1000, fsGroup: 1000}
          containers:
            - name: launcher
              image: hvdtrain
              command:
@command
              resources:
                limits: {cpu: 1, memory: 1Gi}
    Worker:
      replicas: @workers
      restartPolicy: OnFailure
      template:
        spec:
          securityContext: {runAsUser: 1000, fsGroup: 1000}
          containers:
            - name: worker
              image: hvdtrain
              command: [/usr/sbin/sshd, -D, -e, -f, /opt/hvdtrain/docker/sshd_config]
              args: [-o, HostKey=/home/trainer/.ssh/id_rsa, -o, StrictModes=no]
              resources:
                limits: {cpu: @slots, memory: 8Gi}
              volumeMounts:
                - {name: runs, mountPath: /home/trainer/runs}
                - {name: shared-memory, mountPath: /dev/shm}
          volumes:
            - name: runs
              persistentVolumeClaim: {claimName: hvdtrain-runs}
            - name: shared-memory
              emptyDir: {medium: Memory, sizeLimit: 1Gi}
""")


class LaunchForm(str, Enum):
    """The launchers that a launch can be printed for."""

    HOROVODRUN = "horovodrun"
    MPIRUN = "mpirun"
    SLURM = "slurm"
    COMPOSE = "compose"
    MPIJOB = "mpijob"


def write_form(
    form: LaunchForm, request: LaunchRequest, typed: Sequence[str], environ: Mapping[str, str] = os.environ
) -> str:
    """Return the command line, or the file, that makes this launch with another launcher.

    Args:
        form: The launcher.
        request: The launch.
        typed: The program and its arguments before ``python`` and ``hvdtrain`` became this interpreter.
        environ: The environment that the launcher would run in.

    Raises:
        ConfigError: The launcher cannot express the launch, or its mpirun is missing.
    """
    if form is LaunchForm.SLURM:
        return _slurm(request, typed)
    if form is LaunchForm.COMPOSE:
        return _compose(request, typed)
    if form is LaunchForm.MPIJOB:
        return _mpijob(request, typed)
    flavour = find_flavour()
    added = [f"{name}={shlex.quote(value)}" for name, value in find_added(request, flavour, environ).items()]
    words = build_mpirun_command(request, flavour) if form is LaunchForm.MPIRUN else _horovodrun(request, flavour)
    return " ".join([*added, shlex.join(words)])


def _horovodrun(request: LaunchRequest, flavour: str) -> list[str]:
    if flavour == "mpich":
        raise ConfigError(
            "launch: --print horovodrun needs an mpirun that horovodrun knows, got one of MPICH. "
            "Use --print mpirun, or put Open MPI first on PATH."
        )
    beside = Path(sys.executable).with_name("horovodrun")
    binding = [OPENMPI5_BINDING] if flavour == "openmpi5" else []
    program = str(beside) if beside.exists() else "horovodrun"
    return [
        program,
        "--mpi",
        "-np",
        str(request.num_ranks),
        "-H",
        join_hosts(request.hosts),
        *binding,
        *request.command,
    ]


def _slurm(request: LaunchRequest, typed: Sequence[str]) -> str:
    slots = _equal_slots(LaunchForm.SLURM, request)
    names = [host.name for host in request.hosts if not host.is_local]
    return _SLURM.substitute(
        nodes=len(request.hosts),
        nodelist=f"#SBATCH --nodelist={','.join(names)}\n" if names else "",
        slots=slots,
        programs=shlex.quote(str(Path(sys.executable).parent)),
        num_ranks=request.num_ranks,
        command=shlex.join(typed),
    )


def _compose(request: LaunchRequest, typed: Sequence[str]) -> str:
    local = [host.name for host in request.hosts if host.is_local]
    if local:
        raise ConfigError(
            "launch: --print compose needs the names of the containers, "
            f"got this machine ({local[0]}). Write for example -H worker1:2,worker2:2."
        )
    words = ["hvdtrain", "launch", "-np", str(request.num_ranks), "-H", join_hosts(request.hosts), "--", *typed]
    services = "\n".join(
        f"  {name}: {{<<: *host, hostname: {name}}}" for name in (host.name for host in request.hosts) if name != "head"
    )
    return _COMPOSE.substitute(command=shlex.join(words), services=services)


#: The operator mounts its key under this name, and names it in no option of ssh.
_MPIJOB_SSH = (
    "-o IdentityFile=/home/trainer/.ssh/id_rsa -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
    "-o ConnectionAttempts=10"
)


def _mpijob(request: LaunchRequest, typed: Sequence[str]) -> str:
    slots = _equal_slots(LaunchForm.MPIJOB, request)
    launch = ["hvdtrain", "launch", "-np", str(request.num_ranks), "--hostfile", "/etc/mpi/hostfile", "--", *typed]
    words = ["env", f"OMPI_MCA_plm_rsh_args={_MPIJOB_SSH}", *launch]
    # JSON is YAML: quoted so that no word of the user's turns into a number or a mapping.
    command = "\n".join(f"                - {json.dumps(word, ensure_ascii=False)}" for word in words)
    return _MPIJOB.substitute(slots=slots, command=command, workers=len(request.hosts))


def _equal_slots(form: LaunchForm, request: LaunchRequest) -> int:
    slots = {host.slots for host in request.hosts}
    if len(slots) > 1:
        raise ConfigError(
            f"launch: --print {form.value} needs hosts of equal slots, got {join_hosts(request.hosts)!r}. "
            "Give each host the same number."
        )
    return slots.pop()
