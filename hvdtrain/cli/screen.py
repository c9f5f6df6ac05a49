"""Tables as every command prints them: as wide as the terminal, a hundred columns at most, no line padded."""

from __future__ import annotations

import re
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Blanks and colour codes at the end of a line.
_END = re.compile(r"(?: |\x1b\[[\d;]*m)+$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


def show(*parts: RenderableType) -> None:
    """Print what rich can draw on standard output."""
    from rich.console import Console

    from hvdtrain.terminal import columns

    console = Console(width=columns(sys.stdout), highlight=False)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    sys.stdout.write(without_padding(captured.get()))
    sys.stdout.flush()


def say(text: str) -> None:
    """Print a sentence on standard output, folded like a table; lines behind its first one are set in."""
    from hvdtrain.terminal import columns

    wrapper = textwrap.TextWrapper(columns(sys.stdout), subsequent_indent="  ", break_long_words=False)
    wrapper.break_on_hyphens = False
    for line in wrapper.wrap(text):
        sys.stdout.write(f"{line}\n")


def without_padding(text: str) -> str:
    r"""Return a text without the blanks at the end of its lines; colours end where they did.

    Example:
        >>> without_padding("one  \ntwo\x1b[0m  \x1b[1m ")
        'one\ntwo\x1b[0m\x1b[1m'
    """
    return _END.sub(lambda end: "".join(_COLOUR.findall(end[0])), text)
