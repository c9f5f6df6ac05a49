"""The program itself: registers the commands and turns what goes wrong into one message and an exit code."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import typer

import hvdtrain
from hvdtrain.cli import launch as launch_command
from hvdtrain.cli import parity as parity_command
from hvdtrain.cli.compare import compare
from hvdtrain.cli.launch import launch
from hvdtrain.cli.parity import parity
from hvdtrain.cli.train import train
from hvdtrain.errors import ConfigError, HvdTrainError

app = typer.Typer(
    help="The same data-parallel training run in PyTorch and TensorFlow, on any number of ranks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(train)
app.command(context_settings=launch_command.CONTEXT)(launch)
app.command(context_settings=parity_command.CONTEXT)(parity)
app.command()(compare)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hvdtrain {hvdtrain.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_print_version, help="Print it."),
) -> None:
    """Take the options that stand before a command."""


def run() -> NoReturn:
    """Run the program on ``sys.argv`` and leave with its exit code."""
    try:
        code = app(standalone_mode=False)
    except HvdTrainError as error:
        _leave(error)
    except typer.Exit as leaving:
        code = leaving.exit_code
    except typer.Abort:
        code = 130
    except Exception as error:
        if not hasattr(error, "format_message"):  # not one of the command line's own errors
            raise
        _leave(ConfigError(f"{_command()}: {error.format_message()} See '{_command()} --help'."))
    sys.stdout.flush()
    sys.exit(code if isinstance(code, int) else 0)


def _command() -> str:
    words = [word for word in sys.argv[1:2] if not word.startswith("-")]
    return " ".join(["hvdtrain", *words])


def _leave(error: HvdTrainError) -> NoReturn:
    from hvdtrain.failure import leave

    if os.environ.get("HVDTRAIN_TRACEBACK"):
        raise error
    leave(error)
