"""The command ``hvdtrain train``: a job file and options in, one run out; the same line under every launcher."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from hvdtrain.cli.complete import among, folders
from hvdtrain.cli.jobs import Framework, JobFile
from hvdtrain.config import TrainConfig

if TYPE_CHECKING:
    from hvdtrain.job import Job

#: What is no option of ours is one of the job.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}

#: Settings that most runs need; the help shows these, so that it fits a screen.
_USUAL = {
    *("epochs", "max_steps", "max_time_s", "global_batch_size", "batch_size", "optimizer", "learning_rate"),
    *("weight_decay", "warmup_epochs", "decay", "seed", "log_every_steps", "save_every_epochs"),
}
_PANEL = "Settings"
_SHOWS_ALL = "hvdtrain.help_all"


class TrainCommand(TyperCommand):
    """The command, whose help leaves most settings to ``--help-all``."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help without the settings that few runs need, unless all are asked for."""
        hidden = [] if ctx.meta.get(_SHOWS_ALL) else [p for p in self.params if _is_rare(p)]
        for param in hidden:
            param.hidden = True  # type: ignore[attr-defined]
        try:
            super().format_help(ctx, formatter)
        finally:
            for param in hidden:
                param.hidden = False  # type: ignore[attr-defined]


def _is_rare(param: Any) -> bool:
    return getattr(param, "rich_help_panel", None) == _PANEL and param.name not in _USUAL


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[_SHOWS_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


def _train(
    context: typer.Context,
    job: JobFile,
    framework: Framework = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir", autocompletion=folders, help="Folder of the run; runs/<job>-<framework> if left out."
        ),
    ] = None,
    init_from: Annotated[
        Path | None,
        typer.Option("--init-from", autocompletion=folders, help="Start from the weights of this checkpoint or run."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint of the run folder.")
    ] = False,
    resume_from: Annotated[
        Path | None,
        typer.Option("--resume-from", autocompletion=folders, help="Continue from this checkpoint, or a run's newest."),
    ] = None,
    allow_config_change: Annotated[
        bool, typer.Option("--allow-config-change", help="Let settings differ from those of the checkpoint.")
    ] = False,
    trace: Annotated[
        int | None, typer.Option("--trace", help="Norms each step, all weights every so many.", min=1)
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print warnings and errors alone.")] = False,
    help_all: Annotated[
        bool,
        typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show every setting, and exit."),
    ] = False,
    **settings: Any,
) -> None:
    """Train the model of a job file on every rank of the launch.

    hvdtrain launch -np 2 -- hvdtrain train job.py --framework torch --epochs 3

    Options that the job file defines for itself stand after it.
    """
    from hvdtrain.job_options import GivenOptions
    from hvdtrain.resume import ResumeRequest
    from hvdtrain.train_job import train_job

    given = {name: value for name, value in settings.items() if value is not None}
    train_job(
        job,
        framework=framework,
        run_dir=run_dir,
        init_from=init_from,
        trace_every_steps=trace,
        resume=ResumeRequest(resume, resume_from, allow_config_change),
        settings=given,
        options=GivenOptions.parse(context.args, option_names(context.command)),
        is_quiet=quiet,
    )


def option_names(command: Any) -> list[str]:
    """Return all options of a command, with their dashes."""
    return [name for param in command.params for name in (*param.opts, *param.secondary_opts)]


def load_passing_on(context: typer.Context, job: Path) -> Job:
    """Load a job for a command that gives its own unknown options to ``hvdtrain train``, and check those.

    Raises:
        ConfigError: The job is refused, or an option is known to nobody.
    """
    from hvdtrain.job import load_job
    from hvdtrain.job_options import GivenOptions

    commands = context.find_root().command.commands  # type: ignore[attr-defined]
    options = GivenOptions.parse(context.args, option_names(commands["train"]))
    loaded = load_job(job, options)
    options.require_all_asked(str(context.info_name), option_names(context.command))
    return loaded


def settings_passing_on(context: typer.Context, job: Path, refused: Sequence[str]) -> dict[str, Any]:
    """Return the fields of TrainConfig among the options that a command gives to ``hvdtrain train``.

    Raises:
        ConfigError: One of the options ``refused`` is among them.
    """
    from hvdtrain.errors import ConfigError

    command = context.find_root().command.commands["train"]  # type: ignore[attr-defined]
    given = command.make_context("train", [str(job), *context.args]).params
    for name in refused:
        if given.get(name):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{context.info_name}: {option} is for a run that stays, got {given[name]}. "
                "Leave it to 'hvdtrain train'."
            )
    return {name: given[name] for name in TrainConfig.model_fields if given.get(name) is not None}


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` one option per field of TrainConfig, so that neither can miss a field of the other."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name, field in TrainConfig.model_fields.items():
        told = _help(field.description, field.annotation, field.default)
        names = [] if _plain(field.annotation) is bool else [f"--{name.replace('_', '-')}"]
        completer = among(_choices(field.annotation)) if _choices(field.annotation) else None
        option = typer.Option(*names, help=told, rich_help_panel=_PANEL, autocompletion=completer)
        kind: Any = _plain(field.annotation) | None
        annotation = Annotated[kind, option]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__name__ = "train"
    return command


def _help(description: str | None, annotation: Any, default: Any) -> str:
    """Return a description with the choices, where there are any, and the default of TrainConfig."""
    choices = _choices(annotation)
    parts = [*([", ".join(choices)] if choices else []), *([f"default: {default}"] if default is not None else [])]
    return f"{description} ({'; '.join(parts)})" if parts else str(description)


def _choices(annotation: Any) -> tuple[str, ...]:
    return typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()


def _plain(annotation: Any) -> Any:
    """Return the bare type that the command line parses; TrainConfig checks ranges and choices."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _plain(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return _plain(next(part for part in typing.get_args(annotation) if part is not type(None)))
    if origin is typing.Literal:
        return str
    if origin is tuple:
        return tuple[tuple(_plain(part) for part in typing.get_args(annotation))]  # type: ignore[misc]
    return annotation


train = _with_settings(_train)
