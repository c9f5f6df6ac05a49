"""The command ``hvdtrain inspect``: what does a checkpoint hold, and is it whole?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hvdtrain.cli.complete import folders
from hvdtrain.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hvdtrain.inspection import Inspection


def inspect(
    checkpoint: Annotated[
        Path, typer.Argument(autocompletion=folders, help="Folder of a checkpoint, or of a run: its newest one.")
    ],
    verify: Annotated[bool, typer.Option("--verify", help="Check the digest of every file.")] = False,
) -> None:
    """Show what a checkpoint holds: where its run stood, tensors, norms, optimizer slots, digests.

    hvdtrain inspect runs/digits-torch --verify

    Norms are of finite values. Exit code 0 when it can be read, and with --verify when every digest matches; 2 when
    not.
    """
    from hvdtrain.errors import CheckpointError
    from hvdtrain.inspection import inspect_checkpoint

    found = inspect_checkpoint(checkpoint, verify=verify)
    _print_head(found)
    _print_files(found)
    _print_weights(found)
    _print_slots(found)
    if found.damaged:
        raise CheckpointError(
            f"inspect: every file must match its digest, got {' and '.join(found.damaged)} of {found.path} that "
            "does not. Use an older checkpoint."
        )


def _print_head(found: Inspection) -> None:
    """Print what the manifest says; a stranger may have written it, so it reaches the terminal as plain text."""
    from rich.table import Table
    from rich.text import Text

    from hvdtrain.cli.screen import show
    from hvdtrain.plain_files import printable

    grid = Table.grid("name", "value", padding=(0, 2))
    for name, value in _facts(found):
        if value:
            grid.add_row(name, Text(printable(value, 2000), overflow="fold"))
    show(grid)


def _facts(found: Inspection) -> Iterator[tuple[str, str]]:
    manifest, counters = found.manifest, found.manifest.get("counters", {})
    yield "checkpoint", str(found.path)
    yield "run", f"{manifest.get('framework', 'unknown framework')} x {manifest.get('size', 1)}"
    yield "step", str(counters.get("global_step", ""))
    place = counters.get("step_in_epoch", 0)
    where = f"{counted(place, 'step')} into it" if place else "complete"
    yield "epoch", f"{counters['epoch']}, {where}" if "epoch" in counters else ""
    yield "samples seen", f"{counters['samples_seen']:,}" if "samples_seen" in counters else ""
    yield "versions", ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items())
    config = manifest.get("config", {})
    settings = ("optimizer", "learning_rate", "global_batch_size", "precision", "seed")
    yield (
        "settings",
        ", ".join(f"{name} {config[name]}" for name in settings if isinstance(config.get(name), str | int | float)),
    )
    yield "notes", ", ".join(manifest.get("notes", []))
    yield "aliases", ", ".join(f"{alias} = {name}" for alias, name in manifest["aliases"].items())


def _print_files(found: Inspection) -> None:
    from rich.table import Table

    from hvdtrain.cli.screen import show

    table = Table("file", "digest")
    table.add_column("bytes", justify="right")
    table.add_row("manifest.json", "matches", "")
    for file in found.files:
        table.add_row(file.name, file.digest, f"{file.num_bytes:,}")
    show(table)


def _print_weights(found: Inspection) -> None:
    from rich.table import Table
    from rich.text import Text

    from hvdtrain.cli.screen import show
    from hvdtrain.plain_files import printable

    total = sum(tensor.num_values for tensor in found.weights)
    table = Table(caption=f"{counted(len(found.weights), 'tensor')} of weights and buffers, {counted(total, 'value')}")
    table.add_column("weight", overflow="fold")
    for name in ("dtype", "shape"):
        table.add_column(name)
    for name in ("norm", "non-finite"):
        table.add_column(name, justify="right")
    for tensor in found.weights:
        shape = " x ".join(map(str, tensor.shape)) or "scalar"
        table.add_row(
            Text(printable(tensor.name)), tensor.dtype, shape, f"{tensor.norm:.6g}", f"{tensor.num_nonfinite or '-'}"
        )
    show(table)


def _print_slots(found: Inspection) -> None:
    from rich.table import Table
    from rich.text import Text

    from hvdtrain.cli.screen import show
    from hvdtrain.plain_files import printable

    if not found.slots:
        return
    table = Table(caption="optimizer slots, over all parameters")
    table.add_column("slot", overflow="fold")
    table.add_column("dtype")
    for name in ("tensors", "values", "norm", "each", "non-finite"):
        table.add_column(name, justify="right")
    for slot in found.slots:
        each = "" if slot.lowest is None else f"{slot.lowest:g}"
        each += "" if slot.highest == slot.lowest else f" to {slot.highest:g}"
        counts = f"{slot.num_tensors:,}", f"{slot.num_values:,}"
        table.add_row(
            Text(printable(slot.name)), slot.dtypes, *counts, f"{slot.norm:.6g}", each, f"{slot.num_nonfinite or '-'}"
        )
    show(table)
