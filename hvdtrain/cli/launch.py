"""The command ``hvdtrain launch``: options in, one mpirun out; the work is in `hvdtrain.launch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hvdtrain.cli.complete import program
from hvdtrain.cli.places import Hostfile, Hosts
from hvdtrain.launch.forms import LaunchForm

#: What follows the program belongs to it, also where it looks like an option of ours.
CONTEXT = {"allow_interspersed_args": False}


def launch(
    num_ranks: Annotated[int, typer.Option("-np", "--num-ranks", help="Processes of the job.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- PROGRAM [ARGUMENT]...", autocompletion=program, help="What every rank runs."),
    ] = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    restarts: Annotated[
        int, typer.Option("--restarts", min=0, help="After a failure, launch again and resume, up to so many times.")
    ] = 0,
    launcher_log: Annotated[
        Path | None,
        typer.Option("--launcher-log", help="File for mpirun's own words; hvdtrain/launch.log if left out."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but what goes wrong.")] = False,
    form: Annotated[
        LaunchForm | None, typer.Option("--print", help="Print the command or file for this launcher, and stop.")
    ] = None,
) -> None:
    """Start a program on several ranks with mpirun.

    hvdtrain launch -np 2 -H worker1:1,worker2:1 -- hvdtrain train job.py

    'python' and 'hvdtrain' mean this very interpreter, on each host.
    """
    from hvdtrain.launch.forms import write_form
    from hvdtrain.launch.mpirun import make_request
    from hvdtrain.launch.restarts import run_launch

    request = make_request(num_ranks, command or [], hosts=hosts, hostfile=hostfile)
    if form is not None:
        typer.echo(write_form(form, request, command or []).rstrip("\n"))
        raise typer.Exit(0)
    raise typer.Exit(run_launch(request, restarts=restarts, log_path=launcher_log, is_quiet=quiet))
