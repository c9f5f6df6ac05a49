"""The code blocks and tables of README.md, and whether the command lines in them are ones that exist."""

from __future__ import annotations

import re
import shlex
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from hvdtrain.cli.main import app
from hvdtrain.config import TrainConfig
from hvdtrain.errors import ConfigError, HvdTrainError
from hvdtrain.job import load_job
from hvdtrain.job_options import GivenOptions

PROJECT = Path(__file__).parents[2]
README = PROJECT / "README.md"

#: Other programs that a line may begin with: they belong to the launchers and origins that the README names.
PROGRAMS = ("horovodrun", "mpirun", "torchrun", "deepspeed", "python", "wait")


@dataclass(frozen=True)
class Block:
    """A fenced block: the heading that it stands under, its language, and which of these it is, from 1."""

    heading: str
    language: str
    number: int
    text: str

    @property
    def key(self) -> str:
        """A name that no other block has."""
        return f"{self.heading} / {self.language} {self.number}"


def read_blocks(text: str) -> dict[str, Block]:
    """Return the blocks of a Markdown text by key."""
    blocks: dict[str, Block] = {}
    heading, language, lines = "", "", None
    for line in text.splitlines():
        if lines is not None and line == "```":
            number = 1 + sum((b.heading, b.language) == (heading, language) for b in blocks.values())
            block = Block(heading, language, number, "".join(f"{inner}\n" for inner in lines))
            blocks[block.key] = block
            lines = None
        elif lines is not None:
            lines.append(line)
        elif line.startswith("```"):
            language, lines = line.removeprefix("```"), []
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    assert lines is None, f"a block under {heading!r} has no end"
    return blocks


def read_table(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading, without its two head lines."""
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = re.search(r"(^\|.*\n)+", section, re.M)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


# ---------------------------------------------------------------- command lines
def command_lines(script: str) -> Iterator[list[str]]:
    """Yield the words of each command of a script, without comments, redirections and settings before a program."""
    for line in script.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        skips = False
        for word in lexer:
            if word == ">":
                skips = True
            elif word in ("&", "&&", "|", ";"):
                yield from _without_settings(words)
                words = []
            elif skips:
                skips = False
            else:
                words.append(word)
        yield from _without_settings(words)


def _without_settings(words: list[str]) -> Iterator[list[str]]:
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    if words:
        yield words


def find_fault(words: Sequence[str]) -> str | None:
    """Return what is wrong with a command: a program, command, option or value that does not exist."""
    program, *rest = words
    if program == "bash":
        return None if (PROJECT / rest[0]).is_file() else f"there is no {rest[0]}"
    if program == "docker/cluster.sh":
        return _find_cluster_fault(rest)
    if program != "hvdtrain":
        if program not in PROGRAMS:
            return f"no such program: {program}"
        return find_fault(rest[rest.index("hvdtrain") :]) if "hvdtrain" in rest else None
    try:
        return _find_own_fault(rest)
    except HvdTrainError as error:
        return str(error)
    except Exception as error:
        if not hasattr(error, "format_message"):  # not one of the command line's own errors
            raise
        return str(error.format_message())


def _find_cluster_fault(words: Sequence[str]) -> str | None:
    script = (PROJECT / "docker/cluster.sh").read_text()
    own = [*words[: words.index("--")]] if "--" in words else [*words]
    missing = [word for word in own if word.startswith("-") and not re.search(rf"(?<!\S){word}(?![\w-])", script)]
    if own[0] not in ("up", "run", "kill", "down") or missing:
        return f"docker/cluster.sh does not know {missing or own[0]}"
    given = words[len(own) + 1 :]
    return find_fault(["hvdtrain", "train", "job.py", *given]) if given else None


def _find_own_fault(words: Sequence[str]) -> str | None:
    commands: Any = typer.main.get_command(app)
    name, *rest = words
    if name not in commands.commands:
        return f"no such command: hvdtrain {name}"
    context = commands.commands[name].make_context(name, [*rest])
    if name == "launch":
        return find_fault(context.params["command"]) if context.params["command"] else None
    if name == "train":
        return _find_settings_fault(context)
    if context.args:  # such commands hand the rest to hvdtrain train
        return _find_own_fault(["train", str(context.params["job"]), *context.args])
    return None


def _find_settings_fault(context: Any) -> str | None:
    """Raise for a value that TrainConfig refuses, and for an option that neither the command nor the job has."""
    given = {name: context.params[name] for name in TrainConfig.model_fields if context.params[name] is not None}
    TrainConfig(**given)
    options = GivenOptions.parse(context.args, [name for p in context.command.params for name in p.opts])
    job = PROJECT / context.params["job"]
    if job.is_file():
        load_job(job, options)
    elif job.name not in ("job.py", "moved.py"):
        raise ConfigError(f"there is no {context.params['job']}")
    options.require_all_asked()
    return None


def known_options() -> set[str]:
    """Return the options of all commands of hvdtrain."""
    commands: Any = typer.main.get_command(app)
    params = [param for command in (commands, *commands.commands.values()) for param in command.params]
    return {"--help", *(name for param in params for name in (*param.opts, *param.secondary_opts))}


# ---------------------------------------------------------------- tables
def option_table() -> str:
    """Return the table of options as TrainConfig has them."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for name, field in TrainConfig.model_fields.items():
        meaning = field.description
        if typing.get_origin(field.annotation) is typing.Literal:
            meaning += f": {', '.join(typing.get_args(field.annotation))}"
        rows.append(f"| `--{name.replace('_', '-')}` | {_as_typed(field.default)} | {meaning} |")
    return "".join(f"{row}\n" for row in rows)


def _as_typed(default: object) -> str:
    if default is None:
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
