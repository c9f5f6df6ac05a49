"""The command ``hvdtrain compare``: are two finished runs the same?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hvdtrain.compare import Pair


def compare(
    run_a: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    run_b: Annotated[Path, typer.Argument(help="Folder of another one.")],
    rtol: Annotated[float, typer.Option("--rtol", help="Tolerance of a loss, relative; weights get 10 times.")] = 1e-5,
    picture: Annotated[Path | None, typer.Option("--picture", help="Write the curves as a PNG.")] = None,
) -> None:
    """Compare two finished runs, aligned by samples seen, whatever their ranks or framework.

    hvdtrain compare runs/digits-torch runs/digits-tensorflow

    Exit code 0 when all that can be equal is, within tolerance; 1 when not.
    """
    from hvdtrain.compare import Run, compare_pair
    from hvdtrain.curves import draw_comparisons

    pair = compare_pair(Run.read(run_a), Run.read(run_b), rtol=rtol)
    print_comparisons([pair])
    if picture is not None:
        draw_comparisons([pair.comparison], picture)
        typer.echo(f"curves: {picture}")
    raise typer.Exit(1 if pair.is_fault else 0)


def print_comparisons(pairs: Sequence[Pair]) -> None:
    """Print one row per pair, then what left tolerance first and what cannot be equal."""
    from rich.console import Console
    from rich.table import Table

    told = [(pair.comparison, pair.excuses) for pair in pairs]
    table = Table("runs", "rows", "loss", "grad norm", "weights", "worst tensor", "verdict")
    for result, reasons in told:
        verdict = "same" if result.is_same else "cannot be equal" if reasons else "DIFFERENT"
        table.add_row(
            f"{result.a.name}, {result.b.name}",
            str(result.num_rows),
            f"{result.loss:.1e}",
            f"{result.grad_norm:.1e}",
            f"{result.weights:.1e}",
            result.worst_tensor,
            verdict,
        )
    Console(width=100).print(table)
    for pair in pairs:
        if pair.left_out:
            typer.echo(f"{pair.comparison.a.name}, {pair.comparison.b.name}: not compared: {pair.left_out}")
    for result, reasons in told:
        names = f"{result.a.name}, {result.b.name}"
        for reason in reasons:
            typer.echo(f"{names}: cannot be equal: {reason}")
        if result.first_fault:
            typer.echo(f"{names}: first out of tolerance: {result.first_fault}")
        for name, difference in result.noise.items():
            typer.echo(f"{names}: apart: {name} differs by {difference:.1e}; its gradient is rounding noise")
