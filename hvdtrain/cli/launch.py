"""The command ``hvdtrain launch``: options in, one mpirun out; the work is in `hvdtrain.launch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: What follows the program belongs to it, also where it looks like an option of ours.
CONTEXT = {"allow_interspersed_args": False}


def launch(
    num_ranks: Annotated[int, typer.Option("-np", "--num-ranks", help="Processes of the job.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- PROGRAM [ARGUMENT]...", help="What every rank runs.")
    ] = None,
    hosts: Annotated[
        str | None, typer.Option("-H", "--hosts", help="host:slots,host:slots; this machine if left out.")
    ] = None,
    hostfile: Annotated[
        Path | None, typer.Option("--hostfile", help="The same as a file: one 'host slots=N' a line.")
    ] = None,
    print_command: Annotated[bool, typer.Option("--print-command", help="Print the mpirun command and stop.")] = False,
) -> None:
    """Start a program on several ranks with mpirun.

    hvdtrain launch -np 2 -H worker1:1,worker2:1 -- hvdtrain train job.py

    'python' and 'hvdtrain' mean this very interpreter, on each host.
    """
    import os
    import shlex

    from hvdtrain.launch import build_mpirun_command, find_added, find_flavour, make_request, run_launch

    request = make_request(num_ranks, command or [], hosts=hosts, hostfile=hostfile)
    if print_command:
        flavour = find_flavour()
        words = [f"{name}={shlex.quote(value)}" for name, value in find_added(request, flavour, os.environ).items()]
        typer.echo(" ".join([*words, shlex.join(build_mpirun_command(request, flavour))]))
        raise typer.Exit(0)
    raise typer.Exit(run_launch(request))
