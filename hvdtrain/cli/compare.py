"""The command ``hvdtrain compare``: are two finished runs the same?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hvdtrain.cli.complete import folders

if TYPE_CHECKING:
    from hvdtrain.compare import Comparison, Pair


def compare(
    run_a: Annotated[Path, typer.Argument(autocompletion=folders, help="Folder of a finished run.")],
    run_b: Annotated[Path, typer.Argument(autocompletion=folders, help="Folder of another one.")],
    rtol: Annotated[float, typer.Option("--rtol", help="Tolerance of a loss, relative; weights get 10 times.")] = 1e-5,
    picture: Annotated[Path | None, typer.Option("--picture", help="Write the curves as a PNG.")] = None,
) -> None:
    """Compare two finished runs, aligned by samples seen, whatever their ranks or framework.

    hvdtrain compare runs/digits-torch runs/digits-tensorflow

    They can be the same only if they began from the same weights: start both with --init-from CHECKPOINT. Exit code 0
    when all that can be equal is, within tolerance; 1 when not.
    """
    from hvdtrain.compare import compare_pair
    from hvdtrain.curves import draw_comparisons
    from hvdtrain.finished_run import Run

    pair = compare_pair(Run.read(run_a), Run.read(run_b), rtol=rtol)
    print_comparisons([pair])
    if picture is not None:
        draw_comparisons([pair.comparison], picture)
        typer.echo(f"curves: {picture}")
    raise typer.Exit(1 if pair.is_fault else 0)


def print_comparisons(pairs: Sequence[Pair]) -> None:
    """Print one row per pair, then what left tolerance first and what cannot be equal."""
    from rich.table import Table

    from hvdtrain.cli.screen import say, show

    table = Table("runs", "rows", "loss", "grad norm", "weights", "worst tensor", "verdict")
    for pair in pairs:
        result = pair.comparison
        different = "OTHER START" if result.began_apart else "DIFFERENT"
        verdict = "same" if result.is_same else "cannot be equal" if pair.excuses else different
        table.add_row(
            _names(result),
            str(result.num_rows),
            f"{result.loss:.1e}",
            f"{result.grad_norm:.1e}",
            "not compared" if result.weights_seen is None else f"{result.weights:.1e}",
            result.worst_tensor,
            verdict,
        )
    show(table)
    for pair in pairs:
        for line in _remarks_on(pair):
            say(f"{_names(pair.comparison)}: {line}")


def _names(result: Comparison) -> str:
    """Return what tells the two runs apart: framework and ranks, or else their folders."""
    a, b = result.a, result.b
    return f"{a.name}, {b.name}" if a.name != b.name else f"{a.path.name}, {b.path.name}"


def _remarks_on(pair: Pair) -> Iterator[str]:
    result = pair.comparison
    yield from pair.remarks
    if pair.left_out:
        yield f"not compared: {pair.left_out}"
    yield from (f"cannot be equal: {reason}" for reason in pair.excuses)
    if result.first_fault:
        yield f"first out of tolerance: {result.first_fault}"
    for name, difference in result.noise.items():
        yield f"apart: {name} differs by {difference:.1e}; its gradient is rounding noise"
