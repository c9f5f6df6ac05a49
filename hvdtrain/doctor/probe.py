"""What one host tells about itself; ``python -c SOURCE JSON`` on that host, so it needs the standard library alone.

It first answers each line of its input with its clock, so that the caller can compare clocks; after an empty one, or
the end of input, it prints its facts as one line of JSON. It ends itself after its time limit.
"""

from __future__ import annotations

import array
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = {
    "hvdtrain": ("hvdtrain",),
    "horovod": ("horovod",),
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu"),
    "keras": ("keras",),
    "numpy": ("numpy",),
    "mpi4py": ("mpi4py",),
}
FRAMEWORKS = ("torch", "tensorflow")
#: Loading TensorFlow takes 5 s on an idle machine.
IMPORT_S = 60
_SIOCGIFADDR = 0x8915
_BUILD = """
import horovod.{name} as hvd
print("built:", *(k for k in ("mpi", "gloo", "nccl") if getattr(hvd, k + "_built")()))
"""


def collect(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return all facts of this host as JSON can hold them.

    Args:
        wanted: ``names`` of all hosts, ``job`` (path or None), ``folder`` that ranks work in, ``daemon`` that mpirun
            starts on other hosts.
    """
    with ThreadPoolExecutor() as pool:
        builds = pool.map(find_build, FRAMEWORKS)
        names = pool.map(resolve, wanted["names"])
        return {
            "hostname": socket.gethostname(),
            "cores": count_cores(),
            "shm_free": free_bytes("/dev/shm"),  # noqa: S108  # the very folder that is meant
            "folder_free": free_bytes(wanted["folder"]),
            "tmp_free": free_bytes(os.environ.get("TMPDIR", "/tmp")),  # noqa: S108
            "versions": {"python": platform.python_version(), **{name: find_version(name) for name in PACKAGES}},
            "mpirun": ask_mpirun(),
            "daemon": shutil.which(wanted["daemon"]) if wanted["daemon"] else None,
            "code": digest_package("hvdtrain"),
            "job": digest_file(wanted["job"]) if wanted["job"] else None,
            "interfaces": find_interfaces(),
            "names": dict(zip(wanted["names"], names, strict=True)),
            "builds": dict(zip(FRAMEWORKS, builds, strict=True)),
        }


def count_cores() -> int:
    """Return the cores that this process may use, a container's limit included."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def free_bytes(folder: str) -> int | None:
    """Return the free bytes of a folder's disk, None where there is no such folder."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def find_version(package: str) -> str | None:
    """Return the installed version of a package under any of its names."""
    for name in PACKAGES[package]:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def ask_mpirun() -> str | None:
    """Return the first two lines of ``mpirun --version`` as one, None where there is none."""
    lines = (_run(["mpirun", "--version"], 20) or "").split("\n")
    return " ".join(" ".join(lines[:2]).split()) or None


def find_build(framework: str) -> str | None:
    """Return what Horovod's binding was built with, such as ``mpi gloo``; or why it does not load; None: no part."""
    if find_version(framework) is None or find_version("horovod") is None:
        return None
    code = _BUILD.format(name=framework)
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", code],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=IMPORT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"does not load: not done in {IMPORT_S} s"
    told = [line for line in done.stdout.splitlines() if line.startswith("built:")]
    if done.returncode == 0 and told:
        return told[-1].removeprefix("built:").strip() or "nothing"
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return f"does not load: {last}"


def digest_package(name: str) -> str | None:
    """Return a digest of all Python files of an installed package, paths included."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0{digest_file(str(path))}\0".encode())
    return digest.hexdigest()[:12]


def digest_file(path: str) -> str | None:
    """Return a digest of a file, None where it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]
    except OSError:
        return None


def resolve(name: str) -> dict[str, Any]:
    """Return the address of a name, the name of that address, and the interface that leads there; None where not."""
    try:
        address = socket.getaddrinfo(name, None, family=socket.AF_INET, type=socket.SOCK_STREAM)[0][4][0]
    except OSError:
        return {"address": None, "back": None, "own": None}
    try:
        back = socket.gethostbyaddr(str(address))[0]
    except OSError:
        back = None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # sends nothing
            own = probe.getsockname()[0]
        except OSError:
            own = None
    return {"address": address, "back": back, "own": own}


def find_interfaces() -> dict[str, str]:
    """Return the IPv4 address of every interface that is up, by name."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = array.array("B", struct.pack("256s", name[:15].encode()))
            try:
                fcntl.ioctl(probe, _SIOCGIFADDR, request)
            except OSError:  # it has no address
                continue
            found[name] = socket.inet_ntoa(request.tobytes()[20:24])
    return found


def _run(words: list[str], limit_s: float) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr


def main() -> None:
    """Tell the clock for every line of input but an empty one, then tell the facts."""
    wanted = json.loads(sys.argv[1])
    signal.alarm(wanted["limit_s"])  # the caller may be gone by then, and with it who would end this
    for line in iter(sys.stdin.readline, ""):
        if not line.strip():
            break
        sys.stdout.write(f"{time.time()}\n")
        sys.stdout.flush()
    sys.stdout.write(json.dumps(collect(wanted)) + "\n")


if __name__ == "__main__":
    main()
