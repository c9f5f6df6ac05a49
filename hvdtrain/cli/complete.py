"""What the shell completes: names of frameworks and choices, job files, folders, and the line behind a launch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

Completer = Callable[[str], list[str]]


def among(names: Sequence[str]) -> Completer:
    """Return what completes to one of some names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


#: For ``--framework``.
frameworks = among(("tensorflow", "torch"))


def job_files(incomplete: str) -> list[str]:
    """Return Python files, and the folders on the way to them, that begin so."""
    return _paths(incomplete, lambda entry: entry.suffix == ".py")


def folders(incomplete: str) -> list[str]:
    """Return folders that begin so, such as those of runs and checkpoints."""
    return _paths(incomplete, lambda _: False)


def program(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the line of ``hvdtrain`` that stands behind ``hvdtrain launch -np 2 --``, and no other program's."""
    words: list[str] = [*(context.params.get("command") or ())]
    if not words:
        return [*among(("hvdtrain", "python"))(incomplete), *job_files(incomplete)]
    commands: dict[str, Any] = getattr(context.find_root().command, "commands", {})
    if words[0] != "hvdtrain":
        return job_files(incomplete)
    if len(words) == 1:
        return among(tuple(commands))(incomplete)
    command = commands.get(words[1])
    return [] if command is None else _of_command(command, words[-1], context, incomplete)


def _of_command(command: Any, before: str, context: typer.Context, incomplete: str) -> list[str]:
    """Return the options of a command, or what may follow the word ``before``."""
    if incomplete.startswith("-"):
        return among([name for param in command.params for name in (*param.opts, *param.secondary_opts)])(incomplete)
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    asked = [param for param in command.params if before in param.opts and not getattr(param, "is_flag", False)]
    return [item.value for param in (asked or arguments)[:1] for item in param.shell_complete(context, incomplete)]


def _paths(incomplete: str, is_wanted: Callable[[Path], bool]) -> list[str]:
    """Return paths as they were begun; of a single folder also what is in it, so that the shell does not end there."""
    found = _entries(incomplete, is_wanted)
    if len(found) == 1 and found[0].endswith(os.sep):
        found += _entries(found[0], is_wanted)
    return found


def _entries(incomplete: str, is_wanted: Callable[[Path], bool]) -> list[str]:
    head, _, begun = incomplete.rpartition(os.sep)
    head += os.sep if _ else ""
    try:
        entries = sorted(Path(os.path.expanduser(head) or ".").iterdir())
    except OSError:
        return []
    return [
        f"{head}{entry.name}{os.sep if entry.is_dir() else ''}"
        for entry in entries
        if entry.name.startswith(begun)
        and (begun.startswith(".") or not entry.name.startswith((".", "__")))
        and (entry.is_dir() or is_wanted(entry))
    ]
