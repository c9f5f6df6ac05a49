"""The command ``hvdtrain parity``: both frameworks, one rank and many, the same run?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hvdtrain.cli.complete import frameworks as framework_names
from hvdtrain.cli.jobs import JobFile, QuietRuns
from hvdtrain.cli.train import load_passing_on
from hvdtrain.errors import ConfigError

#: What is no option of ours is one of ``hvdtrain train``.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def parity(
    context: typer.Context,
    job: JobFile,
    num_ranks: Annotated[int, typer.Option("-np", "--num-ranks", help="Ranks of the larger runs.", min=1)] = 2,
    framework: Annotated[
        str | None,
        typer.Option("--framework", autocompletion=framework_names, help="One alone; else all that the job serves."),
    ] = None,
    rtol: Annotated[float, typer.Option("--rtol", help="Tolerance of a loss, relative; weights get 10 times.")] = 1e-5,
    trace: Annotated[int, typer.Option("--trace", help="Steps between full copies of the weights.", min=1)] = 20,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="New folder for all runs; runs/<job>-parity if left out.")
    ] = None,
    quiet: QuietRuns = False,
) -> None:
    """Train a job from one initialisation in both frameworks, on 1 and N ranks, and compare in pairs.

    hvdtrain parity job.py -np 2 --epochs 2

    Other options go to each 'hvdtrain train'. Exit code 0 when all that can be equal is equal, 1 when not.
    """
    from hvdtrain.cli.compare import print_comparisons
    from hvdtrain.curves import draw_comparisons
    from hvdtrain.parity import choose_folder, run_parity

    loaded = load_passing_on(context, job)
    frameworks = [loaded.choose_framework(framework)] if framework else sorted(loaded.frameworks, reverse=True)
    if not frameworks:
        loaded.choose_framework(None)  # raises, and says what is missing
    if len(frameworks) == 1 and num_ranks == 1:
        raise ConfigError(
            f"parity: there must be two runs to compare, got {frameworks[0]} on 1 rank alone. Give -np 2 or more."
        )
    folder = choose_folder(run_dir, loaded.name)
    pairs = run_parity(
        *(job, folder, frameworks),
        num_ranks=num_ranks,
        rtol=rtol,
        trace=trace,
        options=context.args,
        tell=(lambda _: None) if quiet else (lambda line: typer.echo(line, err=True)),
    )
    results = [pair.comparison for pair in pairs]
    print_comparisons(pairs)
    draw_comparisons(results, folder / "parity.png")
    typer.echo(f"curves: {folder / 'parity.png'}")
    raise typer.Exit(1 if any(pair.is_fault for pair in pairs) else 0)
