"""The program itself: registers the commands and turns what goes wrong into one message and an exit code."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

import hvdtrain
from hvdtrain.cli import bench as bench_command
from hvdtrain.cli import launch as launch_command
from hvdtrain.cli import parity as parity_command
from hvdtrain.cli import plan as plan_command
from hvdtrain.cli import train as train_command
from hvdtrain.cli.bench import bench
from hvdtrain.cli.compare import compare
from hvdtrain.cli.doctor import doctor
from hvdtrain.cli.inspect import inspect
from hvdtrain.cli.launch import launch
from hvdtrain.cli.parity import parity
from hvdtrain.cli.plan import plan
from hvdtrain.cli.report import report
from hvdtrain.cli.train import TrainCommand, train
from hvdtrain.errors import ConfigError, HvdTrainError
from hvdtrain.wording import did_you_mean

_HELP = """The same data-parallel training run in PyTorch and TensorFlow, on any number of ranks.

hvdtrain launch -np 2 -- hvdtrain train job.py --framework torch

'hvdtrain COMMAND --help' tells more of each command.
"""


class _InterruptedError(Exception):
    """Ctrl-C on its way past the command line's library, which would end the program without a word."""


class _Program(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _InterruptedError from error


app = typer.Typer(
    cls=_Program,
    help=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(context_settings=train_command.CONTEXT, cls=TrainCommand)(train)
app.command(context_settings=launch_command.CONTEXT)(launch)
app.command(context_settings=parity_command.CONTEXT)(parity)
app.command(context_settings=bench_command.CONTEXT)(bench)
app.command(context_settings=plan_command.CONTEXT)(plan)
app.command()(compare)
app.command()(doctor)
app.command()(inspect)
app.command()(report)


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
    except _InterruptedError as error:
        raise KeyboardInterrupt from error
    except typer.Exit as leaving:
        code = leaving.exit_code
    except typer.Abort:
        code = 130
    except Exception as error:
        if not hasattr(error, "format_message"):  # not one of the command line's own errors
            _fail(error)
        _leave(ConfigError(f"{_command()}: {_usage_message(error)} See '{_command()} --help'."))
    sys.stdout.flush()
    sys.exit(code if isinstance(code, int) else 0)


def _usage_message(error: Any) -> str:
    """Return what is wrong with the command line: rule and value, and the nearest option."""
    name = getattr(error, "option_name", None)
    if name is not None and type(error).__name__ == "NoSuchOption":
        return f"no such option {name!r}.{did_you_mean(name, error.possibilities or _options_of(error))}"
    message: str = error.format_message().rstrip(".").replace("Value error, ", "")
    given = getattr(error, "param", None) and _given(error.param)
    if given:
        choices = re.findall("'([^']+)'", message.partition(" is not one of ")[2])
        return f"{message}, got {given!r}.{did_you_mean(given, choices, cutoff=0.4)}"
    return message if message.endswith("?") else f"{message}."


def _options_of(error: Any) -> list[str]:
    command = error.ctx.command if error.ctx is not None else None
    return [option for param in getattr(command, "params", ()) for option in param.opts]


def _given(param: Any) -> str | None:
    """Return what stands behind an option on the command line."""
    for word, following in zip(sys.argv, [*sys.argv[1:], ""], strict=True):
        option, _, value = word.partition("=")
        if option in param.opts:
            return value or following
    return None


def _command() -> str:
    known = {info.name or getattr(info.callback, "__name__", "") for info in app.registered_commands}
    return " ".join(["hvdtrain", *(word for word in sys.argv[1:2] if word in known)])


def _fail(error: Exception) -> NoReturn:
    """End with a traceback that begins in the job's own code."""
    from hvdtrain import user_frames
    from hvdtrain.quiet import write_error

    write_error(user_frames.told(error))
    sys.exit(1)


def _leave(error: HvdTrainError) -> NoReturn:
    from hvdtrain.failure import leave

    if os.environ.get("HVDTRAIN_TRACEBACK"):
        raise error
    leave(error)
