"""How wide a line may be that a person reads."""

from __future__ import annotations

import os
from typing import IO

from hvdtrain.launch.telling import columns_of_launcher

#: Columns of a log file, and the most that anything is laid out for.
WIDEST = 100

#: Below this nothing is laid out any more, it is only wrapped.
_NARROWEST = 40


def columns(stream: IO[str]) -> int:
    """Return the columns for text on a stream: those of its terminal, or of the launcher's, from 40 to 100."""
    told = columns_of_launcher()
    try:
        if stream.isatty():
            told = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # a stream without a descriptor, or one that is closed
        pass
    return min(max(told, _NARROWEST), WIDEST) if told else WIDEST
