"""Which hosts answer over ssh, asked all at once."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from hvdtrain.errors import ConfigError

SSH_ARGS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")


def require_on_path(program: str) -> None:
    """Refuse to go on without a program."""
    if shutil.which(program) is None:
        raise ConfigError(
            f"launch: {program} must be on PATH, got {os.environ.get('PATH', '')!r}. "
            "Install it with docker/install.sh, or add its folder to PATH."
        )


def require_answers(names: Sequence[str]) -> None:
    """Refuse hosts that ssh does not reach, all in one message."""
    silent = find_silent(names)
    if silent:
        got = ", ".join(f"{name!r} ({reason})" for name, reason in silent.items())
        example = shlex.join(["ssh", *SSH_ARGS, next(iter(silent)), "true"])
        raise ConfigError(
            "launch: each host must answer ssh without a password, "
            f"got no answer from {got}. Make this succeed: {example}."
        )


def find_silent(names: Sequence[str]) -> dict[str, str]:
    """Return the hosts that ssh does not reach, each with the reason; takes about 14 s at most."""
    require_on_path("ssh")
    with ThreadPoolExecutor(max_workers=64) as pool:
        reasons = list(pool.map(_probe_host, names))
    return {name: reason for name, reason in zip(names, reasons, strict=True) if reason}


def _probe_host(name: str) -> str:
    """Return why ssh does not reach a host, or an empty text."""
    command = ["ssh", *SSH_ARGS, name, "true"]
    try:
        # ConnectTimeout does not cover the login, so the probe has a limit of its own.
        done = subprocess.run(  # noqa: S603  # a name is never an option, see hosts.py
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=14
        )
    except subprocess.TimeoutExpired:
        return "silent for 14 s"
    said = done.stderr.strip() or f"exit code {done.returncode}"
    return said.splitlines()[-1].strip(" .") if done.returncode else ""
