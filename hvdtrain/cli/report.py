"""The command ``hvdtrain report``: one page about one run, or several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hvdtrain.cli.complete import folders


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", autocompletion=folders, help="Folders of runs, finished or going on."),
    ],
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one HTML page about runs: curves, throughput, settings, versions, ledger; several are compared.

    hvdtrain report runs/digits-torch runs/digits-tensorflow --out digits.html

    The page needs no network, and nothing in a run folder can make it run a script.
    """
    from hvdtrain.errors import ConfigError
    from hvdtrain.report.page import write_report
    from hvdtrain.wording import counted, size

    try:
        write_report(runs, out)
    except OSError as error:
        raise ConfigError(
            f"report: {out} must be a file that can be written, got {error}. Choose another --out."
        ) from error
    typer.echo(f"report: {out} ({counted(len(runs), 'run')}, {size(out.stat().st_size)})")
