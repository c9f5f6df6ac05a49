"""Keep the notices that a framework writes while it is imported out of the way: a page per rank otherwise."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)


@contextmanager
def stderr_to_log(what: str) -> Iterator[None]:
    """Send what compiled code writes to standard error in the body to the debug log instead.

    An error in the body brings everything back to standard error, where it may explain it.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(kept, 2)
            caught.seek(0)
            os.write(2, caught.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
        caught.seek(0)
        _log.debug("%s: %s", what, caught.read().decode(errors="replace"))
