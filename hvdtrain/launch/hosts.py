"""The hosts of a launch: read them from ``-H`` or from a hostfile, and refuse what is neither."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import ConfigError

# A name cannot begin with a dash, so ssh never reads it as an option.
_HOST = re.compile(r"(\w[\w.-]*):(\d{1,6})", re.ASCII)
_HOSTFILE_LINE = re.compile(r"(\w[\w.-]*)(?:\s+slots\s*=\s*|\s*:\s*)(\d{1,6})", re.ASCII)


@dataclass(frozen=True)
class Host:
    """One machine and the number of ranks that it may hold, at least 1."""

    name: str
    slots: int

    @property
    def is_local(self) -> bool:
        """Whether this is the machine that launches."""
        own = socket.gethostname()
        return self.name in ("localhost", "127.0.0.1", own, own.split(".")[0])

    def __str__(self) -> str:
        """Return ``name:slots``, as ``-H`` takes it."""
        return f"{self.name}:{self.slots}"


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Read the value of ``-H``; an entry that is not ``host:slots`` is a ConfigError."""
    entries = [(entry.strip(), "") for entry in text.split(",")]
    if any(len(entry.split()) > 1 for entry, _ in entries):
        raise ConfigError(
            f"launch: hosts of -H must be separated by commas, got {text!r}. Write for example -H worker1:1,worker2:1."
        )
    rule = "each host of -H must read host:slots with slots of at least 1"
    return _parse_entries(_HOST, entries, rule, "Write for example -H localhost:2.")


def parse_hostfile(text: str, path: Path | str) -> tuple[Host, ...]:
    """Read lines ``host slots=N`` or ``host:N`` between blank lines and comments; path is for messages."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    entries = [(line, f" in line {number}") for number, line in enumerate(lines, 1) if line]
    cure = "Write one host a line, for example localhost slots=2."
    if not entries:
        raise ConfigError(f"launch: --hostfile must name at least 1 host, got none in {str(path)!r}. {cure}")
    rule = f"each line of --hostfile {str(path)!r} must read host slots=N with N of at least 1"
    return _parse_entries(_HOSTFILE_LINE, entries, rule, cure)


def join_hosts(hosts: Sequence[Host]) -> str:
    """Return hosts as ``-H`` takes them.

    Example:
        >>> join_hosts([Host("worker1", 2), Host("worker2", 1)])
        'worker1:2,worker2:1'
    """
    return ",".join(map(str, hosts))


def _parse_entries(form: re.Pattern[str], entries: Sequence[tuple[str, str]], rule: str, cure: str) -> tuple[Host, ...]:
    """Read entries, each with its place for the message that lists all wrong ones."""
    hosts, wrong = [], []
    for entry, place in entries:
        found = form.fullmatch(entry)
        if found and int(found[2]) >= 1:
            hosts.append(Host(found[1], int(found[2])))
        else:
            wrong.append(f"{entry!r}{place}")
    if wrong:
        raise ConfigError(f"launch: {rule}, got {', '.join(wrong)}. {cure}")
    return tuple(hosts)
