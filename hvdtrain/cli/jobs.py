"""The options that say which job runs and how, the same in every command that runs one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hvdtrain.cli.complete import frameworks, job_files

JobFile = Annotated[Path, typer.Argument(autocompletion=job_files, help="The job file.")]
Framework = Annotated[
    str | None,
    typer.Option("--framework", autocompletion=frameworks, help="torch or tensorflow; the job's only one if left out."),
]
Sizes = Annotated[str, typer.Option("-np", "--num-ranks", help="Numbers of ranks, such as 1,2,4.")]
QuietRuns = Annotated[bool, typer.Option("--quiet", help="Do not tell which run is going on.")]


def parse_sizes(command: str, text: str) -> tuple[int, ...]:
    """Return the different numbers of ranks of ``-np``, the smallest first.

    Raises:
        ConfigError: Something else than numbers from 1.
    """
    from hvdtrain.errors import ConfigError

    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"{command}: -np must be numbers from 1, such as 1,2,4, got {text!r}.")
    return sizes
