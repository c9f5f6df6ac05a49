"""A Docker engine for the tests, the base image, and what the image's build needs from this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.harness import run_command
from tests.harness.requirements import skip_or_fail

PROJECT = Path(__file__).parents[2]
BASE_IMAGE = "debian:bookworm-slim"
#: Where ``update-ca-certificates`` finds the authorities that this machine's owner added.
LOCAL_AUTHORITIES = Path("/usr/local/share/ca-certificates")
IMAGES = Path(os.environ.get("HVDTRAIN_CACHE") or Path.home() / ".cache/hvdtrain") / "images"
START_S = 60.0
#: What the tests use beside Docker, and the Debian package of each.
TOOLS = {"nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2", "ethtool": "ethtool"}


@contextmanager
def running_engine(log: Path) -> Iterator[None]:
    """Use the engine that answers, or start one and end it afterwards; skip or fail where there can be none."""
    missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if missing:
        skip_or_fail("cluster", f"these packages are not installed: {', '.join(missing)}")
    if _answers():
        yield
        return
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        skip_or_fail("cluster", "no Docker engine answers, and only root with dockerd installed can start one")
    with log.open("wb") as output:
        engine = subprocess.Popen(["dockerd"], stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + START_S
        while engine.poll() is None and not _answers():
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        if not _answers():
            skip_or_fail("cluster", f"dockerd does not start:\n{log.read_text()[-2000:]}")
        yield
    finally:
        engine.terminate()
        engine.wait(START_S)


def ensure_base_image() -> None:
    """Have the base image under its usual name: there, pulled, or made by debootstrap and kept for later."""
    if _succeeds("docker", "image", "inspect", BASE_IMAGE) or _succeeds("docker", "pull", "--quiet", BASE_IMAGE):
        return
    kept = IMAGES / "debian-bookworm-slim.tar"
    if not kept.exists():
        _bootstrap(kept)
    _do("docker", "import", "--change", 'CMD ["bash"]', str(kept), BASE_IMAGE)


def offer_to_build() -> None:
    """Give the build what it cannot reach itself: authorities, and the CPU build of torch that this machine has."""
    for path in LOCAL_AUTHORITIES.glob("**/*.crt"):
        shutil.copy(path, PROJECT / "docker/certs")
    try:
        torch = version("torch")
    except PackageNotFoundError:
        return
    wheels = PROJECT / "docker/wheels"
    if "+" in torch and not list(wheels.glob(f"torch-{torch}-*.whl")):
        _do(sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(wheels), f"torch=={torch}")


def _bootstrap(kept: Path) -> None:
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        reason = f"{BASE_IMAGE} can neither be pulled nor made: that takes root and debootstrap"
        skip_or_fail("cluster", reason)
    lines = _do("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
    sources = [line for line in lines.splitlines() if " bookworm" in line]
    mirror = next(
        (line.split()[0] for line in sources if line.split()[1] == "bookworm"), "http://deb.debian.org/debian"
    )
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        root, made = Path(scratch) / "root", Path(scratch) / "root.tar"
        _do("debootstrap", "--variant=minbase", "bookworm", str(root), mirror)
        if sources:
            (root / "etc/apt/sources.list").write_text("".join(f"deb {line}\n" for line in sources))
        shutil.rmtree(root / "var/cache/apt/archives")
        _do("tar", "-C", str(root), "-cf", str(made), ".")
        # Moved only when whole: what is in the cache can be used.
        part = kept.with_suffix(f".part-{os.getpid()}")
        shutil.move(made, part)
        part.rename(kept)


def _answers() -> bool:
    return shutil.which("docker") is not None and _succeeds("docker", "info")


def _succeeds(*words: str) -> bool:
    return run_command(words, timeout_s=300).returncode == 0


def _do(*words: str) -> str:
    finished = run_command(words, timeout_s=600)
    assert finished.returncode == 0, f"{' '.join(words)}\n{finished.output}"
    return finished.stdout
