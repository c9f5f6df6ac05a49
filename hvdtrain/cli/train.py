"""The command ``hvdtrain train``: a job file and options in, one run out; the same line under every launcher."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hvdtrain.config import TrainConfig

#: What is no option of ours is one of the job.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def _train(
    context: typer.Context,
    job: Annotated[Path, typer.Argument(help="The job file.")],
    framework: Annotated[
        str | None, typer.Option("--framework", help="torch or tensorflow; the job's only one if left out.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="Folder of the run; runs/<job>-<framework> if left out.")
    ] = None,
    init_from: Annotated[
        Path | None, typer.Option("--init-from", help="Checkpoint whose weights training starts from.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint of the run folder.")
    ] = False,
    resume_from: Annotated[Path | None, typer.Option("--resume-from", help="Continue from this checkpoint.")] = None,
    allow_config_change: Annotated[
        bool, typer.Option("--allow-config-change", help="Let settings differ from those of the checkpoint.")
    ] = False,
    trace: Annotated[
        int | None, typer.Option("--trace", help="Norms each step, all weights every so many.", min=1)
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print warnings and errors alone.")] = False,
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
        options=GivenOptions.parse(context.args, [name for p in context.command.params for name in p.opts]),
        is_quiet=quiet,
    )


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` one option per field of TrainConfig, so that neither can miss a field of the other."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name, field in TrainConfig.model_fields.items():
        told = _help(field.description, field.annotation, field.default)
        option = typer.Option(f"--{name.replace('_', '-')}", help=told, rich_help_panel="Settings")
        if _plain(field.annotation) is bool:
            option = typer.Option(help=told, rich_help_panel="Settings")
        kind: Any = _plain(field.annotation) | None
        annotation = Annotated[kind, option]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__name__ = "train"
    return command


def _help(description: str | None, annotation: Any, default: Any) -> str:
    """Return a description with the choices, where there are any, and the default of TrainConfig."""
    choices = typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()
    parts = [*([", ".join(choices)] if choices else []), *([f"default: {default}"] if default is not None else [])]
    return f"{description} ({'; '.join(parts)})" if parts else str(description)


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
