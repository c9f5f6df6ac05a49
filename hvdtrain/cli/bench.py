"""The command ``hvdtrain bench``: how fast is a job on 1, 2 and more ranks, and where does a step go?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hvdtrain.cli.jobs import Framework, JobFile, QuietRuns, Sizes, parse_sizes
from hvdtrain.cli.train import load_passing_on

if TYPE_CHECKING:
    from hvdtrain.bench import Scale

#: What is no option of ours is one of ``hvdtrain train``.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def bench(
    context: typer.Context,
    job: JobFile,
    sizes: Sizes = "1,2",
    framework: Framework = None,
    weak: Annotated[bool, typer.Option("--weak/--strong", help="Let the global batch grow with the ranks.")] = True,
    global_batch_size: Annotated[
        int | None, typer.Option("--global-batch-size", help="Samples per update on the fewest ranks.", min=1)
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="Steps that count, of each run.", min=2)] = 30,
    warm_up: Annotated[int, typer.Option("--warm-up", help="Steps before them.", min=1)] = 5,
    repeats: Annotated[int, typer.Option("--repeats", help="Runs of each size, interleaved.", min=1)] = 3,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for bench.json and bench.png.")] = None,
    quiet: QuietRuns = False,
) -> None:
    """Time a job on several numbers of ranks of this machine, and say what to change first.

    hvdtrain bench examples/shakespeare.py -np 1,2 --framework torch --size small

    Other options go to each 'hvdtrain train'.
    """
    import json

    from hvdtrain.bench import BenchRequest, as_json, run_bench
    from hvdtrain.bench_picture import draw_bench

    loaded = load_passing_on(context, job)
    chosen = loaded.choose_framework(framework)
    config = loaded.config
    batch = global_batch_size or config.global_batch_size
    if batch is None:
        batch = (config.batch_size or 1) * (config.backward_passes_per_step or 1)
    request = BenchRequest(
        *(job, chosen, parse_sizes("bench", sizes), weak, batch, steps, warm_up, repeats), options=tuple(context.args)
    )
    folder = out or Path("runs") / f"{loaded.name}-bench"
    scales = run_bench(request, folder, (lambda _: None) if quiet else (lambda line: typer.echo(line, err=True)))
    _print(scales)
    (folder / "bench.json").write_text(json.dumps(as_json(request, scales), indent=1) + "\n")
    draw_bench(scales, folder / "bench.png")
    typer.echo(f"figures: {folder / 'bench.json'}, picture: {folder / 'bench.png'}")


def _print(scales: Sequence[Scale]) -> None:
    from rich.table import Table

    from hvdtrain.bench import efficiency
    from hvdtrain.cli.screen import say, show
    from hvdtrain.wording import counted, rate, size

    table = Table("ranks", "global batch", "ms per step", "samples per s", "efficiency", "memory of a rank")
    for scale in scales:
        table.add_row(
            str(scale.size),
            str(scale.global_batch_size),
            f"{scale.median_ms:.1f} ± {scale.spread_ms:.1f}",
            rate(scale.samples_per_s),
            f"{efficiency(scale, scales[0]):.0%}",
            size(scale.memory_bytes),
        )
    parts = Table("part of a step", *(counted(scale.size, "rank") for scale in scales))
    for name in scales[0].split:
        shares = [scale.split[name] / (sum(scale.split.values()) or 1.0) for scale in scales]
        told = (f"{scale.split[name]:.2f} ms, {share:.0%}" for scale, share in zip(scales, shares, strict=True))
        parts.add_row(name, *told)
    parts.add_row("floor of communication", *(f"{s.floor_ms:.2f} ms" if s.size > 1 else "" for s in scales))
    show(table, parts)
    for scale in scales:
        say(f"{counted(scale.size, 'rank')}: {scale.advice()}")
