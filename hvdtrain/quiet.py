"""Keep the notices that a framework writes while it is imported out of the way: a page per rank otherwise."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_log = logging.getLogger(__name__)

#: Where standard error goes while it is redirected.
_kept: int | None = None

#: Lines that were kept off standard error, each with what it came from.
_caught: list[str] = []


def write_error(text: str) -> None:
    """Write to standard error in one piece, past a redirection of this module; any thread may.

    Launchers tag every write, so text that belongs together must not be cut.
    """
    sys.stdout.flush()
    if _kept is not None:
        os.write(_kept, text.encode())
        return
    sys.stderr.write(text)
    sys.stderr.flush()


@contextmanager
def stderr_to_log(what: str) -> Iterator[None]:
    """Send what compiled code writes to standard error in the body to the debug log, and keep it for a file.

    An error in the body brings everything back to standard error, where it may explain it; Ctrl-C explains itself.
    """
    global _kept
    sys.stderr.flush()
    kept = _kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield
        except Exception:
            os.dup2(kept, 2)
            caught.seek(0)
            os.write(2, caught.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            _kept = None
            os.close(kept)
        caught.seek(0)
        text = caught.read().decode(errors="replace")
        _log.debug("%s: %s", what, text)
        _caught.extend(f"{what}: {line}\n" for line in text.splitlines())


def write_caught(path: Path) -> None:
    """Write what was kept off standard error to a file of its own, in place of what is there; none for nothing.

    A log is worth no run: where it cannot be written, that is told in the debug log.
    """
    if not _caught:
        return
    try:
        path.unlink(missing_ok=True)  # a link is taken away, never followed
        with path.open("x") as stream:
            stream.write("".join(_caught))
    except OSError as error:
        _log.debug("%s: not written: %s", path, error)
