"""Where the program begins: Ctrl-C says one line from the first import on."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn


def start() -> NoReturn:
    """Load the command line, and run it."""
    try:
        from hvdtrain.cli.main import run

        run()
    except KeyboardInterrupt:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os.write(2, b"hvdtrain: stopped by SIGINT\n")
        os._exit(130)  # whatever was half imported has nothing to say at its end
