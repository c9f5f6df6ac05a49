"""The two options that name hosts, the same in every command that starts something on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Hosts = Annotated[str | None, typer.Option("-H", "--hosts", help="host:slots,host:slots; this machine if left out.")]
Hostfile = Annotated[Path | None, typer.Option("--hostfile", help="The same as a file: one 'host slots=N' a line.")]
