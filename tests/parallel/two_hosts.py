"""Two hosts on one machine: network namespaces with a wire between them, names of their own, and a stand-in for ssh.

What runs on them reaches the other one over TCP alone, as on a real network. They share the disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

#: Addresses kept for tests of networks; they are the names of the hosts, too.
ADDRESSES = ("198.18.77.1", "198.18.77.2")
SSH = """#!/usr/bin/env bash
while [[ $1 == -* ]]; do [[ $1 == -o ]] && shift; shift; done
host=$1; shift
exec ip netns exec "{prefix}${{host##*.}}" unshare --uts sh -c "hostname worker${{host##*.}}; $*"
"""


@dataclass(frozen=True)
class TwoHosts:
    """Namespaces ``prefix1`` and ``prefix2``, and the folder that holds their ssh."""

    prefix: str
    folder: Path

    def on_first(self, *words: str) -> list[str]:
        """Return a command that runs on the first host."""
        named = 'hostname worker1; exec "$@"'
        return ["ip", "netns", "exec", f"{self.prefix}1", "unshare", "--uts", "sh", "-c", named, "sh", *words]

    def env(self, changes: dict[str, str]) -> dict[str, str]:
        """Return the changes of an environment with this ssh first on PATH."""
        return {**changes, "PATH": os.pathsep.join([str(self.folder), changes["PATH"]])}


@contextmanager
def two_hosts(folder: Path) -> Iterator[TwoHosts]:
    """Make both hosts, and take them away again; skips where that is not allowed."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare"))):
        pytest.skip("two hosts on one machine need root, iproute2 and unshare")
    prefix = f"hvd{os.getpid()}-"
    names = [f"{prefix}{number}" for number in (1, 2)]
    try:
        for name in names:
            if _ip("netns", "add", name):
                pytest.skip("this machine makes no network namespaces")
        _ip("link", "add", "wire1", "netns", names[0], "type", "veth", "peer", "name", "wire2", "netns", names[1])
        for number, (name, address) in enumerate(zip(names, ADDRESSES, strict=True), 1):
            _ip("-n", name, "addr", "add", f"{address}/30", "dev", f"wire{number}")
            _ip("-n", name, "link", "set", f"wire{number}", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        (folder / "ssh").write_text(SSH.format(prefix=prefix))
        (folder / "ssh").chmod(0o755)
        yield TwoHosts(prefix, folder)
    finally:
        for name in names:
            _ip("netns", "del", name)


def _ip(*words: str) -> int:
    return subprocess.run(["ip", *words], capture_output=True, timeout=20, check=False).returncode
