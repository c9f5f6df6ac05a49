"""The command ``hvdtrain doctor``: are these hosts fit for a launch, and if not, what is to be done?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hvdtrain.cli.complete import job_files
from hvdtrain.cli.places import Hostfile, Hosts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hvdtrain.doctor.verdicts import Row


def doctor(
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    job: Annotated[
        Path | None,
        typer.Option("--job", autocompletion=job_files, help="A job file that must be the same on every host."),
    ] = None,
) -> None:
    """Look whether hosts are fit for a launch: ssh, names, network, memory, versions, builds, code, clocks, disks.

    hvdtrain doctor -H worker1:2,worker2:2 --job job.py

    Measures an allreduce over them. Exit code 0 when a launch can work, 1 when something must be mended first.
    """
    from hvdtrain.doctor.examination import examine
    from hvdtrain.wording import counted

    rows, places = examine(hosts=hosts, hostfile=hostfile, job=job)
    print_rows(rows)
    failed = [f"{row.check} on {row.host}" for row in rows if row.status == "FAIL"]
    size = f"{counted(len(places), 'host')}, {counted(sum(host.slots for host in places), 'slot')}"
    if failed:
        told = f"{len(failed)} of {counted(len(rows), 'check')} {'fails' if len(failed) == 1 else 'fail'}"
        typer.echo(f"doctor: NOT READY ({size}): {told}: {', '.join(failed)}")
        raise typer.Exit(1)
    typer.echo(f"doctor: ready ({size})")


def print_rows(rows: Sequence[Row]) -> None:
    """Print the table, and below each row that is not good what to do."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from hvdtrain.cli.screen import show

    colours = {"ok": "green", "note": "yellow", "FAIL": "bold red"}
    table = Table("", "check", "host", "found", box=box.SIMPLE_HEAD)
    for row in rows:
        found = Text(row.found, overflow="fold")  # other hosts wrote it: no markup
        if row.cure:
            found.append(f"\n-> {row.cure}")
        status = Text(row.status, style=colours[row.status])
        table.add_row(status, row.check, Text(row.host, overflow="fold"), found)
    show(table)
