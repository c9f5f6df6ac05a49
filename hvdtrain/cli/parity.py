"""The command ``hvdtrain parity``: both frameworks, one rank and many, the same run?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: What is no option of ours is one of ``hvdtrain train``.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def parity(
    context: typer.Context,
    job: Annotated[Path, typer.Argument(help="The job file.")],
    num_ranks: Annotated[int, typer.Option("-np", "--num-ranks", help="Ranks of the larger runs.", min=1)] = 2,
    framework: Annotated[
        str | None, typer.Option("--framework", help="One alone; else all that the job serves.")
    ] = None,
    rtol: Annotated[float, typer.Option("--rtol", help="Tolerance of a loss, relative; weights get 10 times.")] = 1e-5,
    trace: Annotated[int, typer.Option("--trace", help="Steps between full copies of the weights.", min=1)] = 20,
    run_dir: Annotated[Path | None, typer.Option("--run-dir", help="New folder for all runs.")] = None,
) -> None:
    """Train a job from one initialisation in both frameworks, on 1 and N ranks, and compare in pairs.

    hvdtrain parity job.py -np 2 --epochs 2

    Other options go to each 'hvdtrain train'. Exit code 0 when all that can be equal is equal, 1 when not.
    """
    from hvdtrain.cli.compare import print_comparisons
    from hvdtrain.curves import draw_comparisons
    from hvdtrain.job import load_job
    from hvdtrain.job_options import GivenOptions
    from hvdtrain.parity import run_parity

    loaded = load_job(job, GivenOptions.parse(context.args))
    frameworks = [loaded.choose_framework(framework)] if framework else sorted(loaded.frameworks, reverse=True)
    if not frameworks:
        loaded.choose_framework(None)  # raises, and says what is missing
    folder = run_dir or Path("runs") / f"{loaded.name}-parity"
    pairs = run_parity(
        job, num_ranks=num_ranks, folder=folder, frameworks=frameworks, rtol=rtol, trace=trace, options=context.args
    )
    results = [pair.comparison for pair in pairs]
    if not results:
        typer.echo("parity: nothing to compare with one framework on one rank; give -np 2 or more")
        raise typer.Exit(2)
    print_comparisons(pairs)
    draw_comparisons(results, folder / "parity.png")
    typer.echo(f"curves: {folder / 'parity.png'}")
    raise typer.Exit(1 if any(pair.is_fault for pair in pairs) else 0)
