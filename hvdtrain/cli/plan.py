"""The command ``hvdtrain plan``: what will a run take, before it is paid for?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hvdtrain.cli.jobs import Framework, JobFile, QuietRuns, Sizes, parse_sizes
from hvdtrain.cli.train import load_passing_on, settings_passing_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hvdtrain.forecast.outlook import Outlook, Row

#: What is no option of ours is one of ``hvdtrain train``.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}

#: Options of ``hvdtrain train`` that a plan has no use for.
_OF_A_RUN = ("run_dir", "init_from", "resume", "resume_from", "trace")


def plan(
    context: typer.Context,
    job: JobFile,
    sizes: Sizes = "1,2",
    framework: Framework = None,
    bandwidth: Annotated[
        str | None, typer.Option("--bandwidth", help="Between ranks, such as 25Gbit; measured here if left out.")
    ] = None,
    latency: Annotated[
        str | None, typer.Option("--latency", help="Of a message, such as 20us; measured here if left out.")
    ] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="That a rank may take, such as 80GB.")] = None,
    ranks_per_host: Annotated[
        int | None, typer.Option("--ranks-per-host", help="That share a host's cores; as fit here if left out.", min=1)
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="Steps of a dry run that count, at least.", min=3)] = 20,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures here.")] = None,
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw a PNG here.")] = None,
    quiet: QuietRuns = False,
) -> None:
    """Tell what a job will take on several numbers of ranks: memory, time of a step, learning rates.

    hvdtrain plan examples/digits.py -np 1,2,8 --framework torch --bandwidth 25Gbit --latency 20us

    Trains for a moment, and keeps nothing. Other options are those of 'hvdtrain train'.
    """
    from hvdtrain.forecast.planning import PlanRequest, make_outlook
    from hvdtrain.forecast.units import parse_bandwidth, parse_bytes, parse_seconds

    loaded = load_passing_on(context, job)
    request = PlanRequest(
        job=job,
        framework=loaded.choose_framework(framework),
        config=loaded.config.replace(**settings_passing_on(context, job, refused=_OF_A_RUN)),
        options=tuple(context.args),
        sizes=parse_sizes("plan", sizes),
        bandwidth=None if bandwidth is None else parse_bandwidth("--bandwidth", bandwidth),
        latency_s=None if latency is None else parse_seconds("--latency", latency),
        limit=None if memory is None else parse_bytes("--memory", memory),
        num_local_ranks=ranks_per_host,
        num_steps=steps,
    )
    outlook = make_outlook(request, (lambda _: None) if quiet else (lambda line: typer.echo(line, err=True)))
    rows = [outlook.row(size) for size in request.sizes]
    _show(f"{loaded.name} in {request.framework}", outlook, rows)
    _write({"job": str(job), "framework": request.framework}, outlook, rows, json_file, picture)


def _show(title: str, outlook: Outlook, rows: Sequence[Row]) -> None:
    from hvdtrain.cli.screen import say, show
    from hvdtrain.forecast.text import advice_table, replica_lines, scale_table, verdict_lines
    from hvdtrain.wording import counted

    batch, ranks = rows[-1].setup.sizes.global_batch_size, counted(rows[-1].setup.num_ranks, "rank")
    typer.echo(f"{title}: global batch {batch:,}, on {ranks} each holds")
    typer.echo("\n".join(replica_lines(outlook, rows)))
    show(scale_table(rows), advice_table(outlook, rows))
    for line in verdict_lines(outlook, rows):
        say(line)


def _write(
    facts: dict[str, Any], outlook: Outlook, rows: Sequence[Row], json_file: Path | None, picture: Path | None
) -> None:
    import json

    from hvdtrain.forecast.outlook import as_json
    from hvdtrain.forecast.picture import draw_plan

    if json_file is not None:
        json_file.write_text(json.dumps(as_json(outlook, rows, facts), indent=1) + "\n")
    if picture is not None:
        draw_plan(outlook, rows, picture)
