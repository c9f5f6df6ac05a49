"""What the MPI Operator accepts as an MPIJob of kubeflow.org/v2beta1: its types and its own validation, as far as used.

Written from pkg/apis/kubeflow/v2beta1/types.go and pkg/apis/kubeflow/validation/validation.go of kubeflow/mpi-operator,
and from the Kubernetes API reference for pods. Unknown fields are refused, as ``kubectl apply --validate=strict`` does.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


Label = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Count = Annotated[int, Field(ge=0)]
Quantity = Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=r"^\d+(\.\d+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")]
Path = Annotated[str, Field(pattern="^/")]


class Mount(Strict):
    name: Label
    mountPath: Path
    readOnly: bool = False


class Resources(Strict):
    limits: dict[str, Quantity] = {}
    requests: dict[str, Quantity] = {}


class Container(Strict):
    name: Label
    image: Annotated[str, Field(min_length=1)]
    command: Annotated[list[str], Field(min_length=1)]
    args: list[str] = []
    resources: Resources = Resources()
    volumeMounts: list[Mount] = []


class EmptyDir(Strict):
    medium: Literal["", "Memory"] = ""
    sizeLimit: Quantity | None = None


class Claim(Strict):
    claimName: Label


class Volume(Strict):
    name: Label
    emptyDir: EmptyDir | None = None
    persistentVolumeClaim: Claim | None = None

    @model_validator(mode="after")
    def _has_one_source(self) -> Volume:
        assert (self.emptyDir is None) != (self.persistentVolumeClaim is None), f"volume {self.name} needs one source"
        return self


class PodSecurity(Strict):
    runAsUser: Count
    fsGroup: Count


class PodSpec(Strict):
    securityContext: PodSecurity | None = None
    containers: Annotated[list[Container], Field(min_length=1)]
    volumes: list[Volume] = []

    @model_validator(mode="after")
    def _mounts_known_volumes(self) -> PodSpec:
        known = {volume.name for volume in self.volumes}
        mounted = {mount.name for container in self.containers for mount in container.volumeMounts}
        assert mounted <= known, f"mounts {sorted(mounted - known)} have no volume"
        return self


class Template(Strict):
    spec: PodSpec


class ReplicaSpec(Strict):
    replicas: Annotated[int, Field(ge=1)]
    restartPolicy: Literal["Never", "OnFailure"]
    template: Template


class ReplicaSpecs(Strict):
    Launcher: ReplicaSpec
    Worker: ReplicaSpec | None = None

    @model_validator(mode="after")
    def _has_one_launcher(self) -> ReplicaSpecs:
        assert self.Launcher.replicas == 1, "the launcher must have 1 replica"
        return self


class RunPolicy(Strict):
    cleanPodPolicy: Literal["None", "Running", "All"]
    ttlSecondsAfterFinished: Count | None = None
    activeDeadlineSeconds: Count | None = None
    backoffLimit: Count | None = None
    suspend: bool = False


class Spec(Strict):
    slotsPerWorker: Annotated[int, Field(ge=1)]
    runPolicy: RunPolicy
    sshAuthMountPath: Path = "/root/.ssh"
    launcherCreationPolicy: Literal["AtStartup", "WaitForWorkersReady"] = "AtStartup"
    mpiImplementation: Literal["OpenMPI", "Intel", "MPICH"] = "OpenMPI"
    mpiReplicaSpecs: ReplicaSpecs


class Metadata(Strict):
    name: str
    namespace: Label | None = None
    labels: dict[str, str] = {}


class MPIJob(Strict):
    apiVersion: Literal["kubeflow.org/v2beta1"]
    kind: Literal["MPIJob"]
    metadata: Metadata
    spec: Spec

    @model_validator(mode="after")
    def _last_worker_has_a_valid_name(self) -> MPIJob:
        worker = self.spec.mpiReplicaSpecs.Worker
        last = f"{self.metadata.name}-worker-{worker.replicas - 1 if worker else 0}"
        assert re.fullmatch("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", last), f"{last} is no name of a pod"
        return self
