"""A traceback as the person needs it who wrote the job: it begins with their own code.

Above that stand a dozen frames of this package, of the command line's library and of the standard library, which are
the same for every mistake.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

_PACKAGE = str(Path(__file__).parent)

#: Folders whose code nobody wrote for a job: this package, the standard library, and what is installed.
_FOREIGN = tuple(f"{folder}/" for folder in (_PACKAGE, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")))
_INSTALLED = ("/site-packages/", "/dist-packages/")

_COMMAND_LINE = "/site-packages/typer/"

#: The programs by which this package is started.
_PROGRAMS = ("/bin/hvdtrain", "/bin/mpirun")


def told(error: BaseException) -> str:
    """Return an error with its causes, each traceback from the first frame of the person's own code on.

    One without any such frame, a fault of this package or of an installed one, begins behind the command line's
    library. ``HVDTRAIN_TRACEBACK`` in the environment brings every frame back.
    """
    whole = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = whole
    seen: set[int] = set()
    while part is not None and id(part) not in seen and not os.environ.get("HVDTRAIN_TRACEBACK"):
        seen.add(id(part))
        files = [frame.filename for frame in part.stack]
        # The last frame stays in any case.
        behind = max((index + 1 for index, file in enumerate(files[:-1]) if _COMMAND_LINE in file), default=0)
        del part.stack[: next((index for index, file in enumerate(files) if _is_own(file)), behind)]
        part = part.__cause__ or part.__context__
    return "".join(whole.format())


def _is_own(file: str) -> bool:
    is_foreign = file.startswith((*_FOREIGN, "<frozen")) or any(folder in file for folder in _INSTALLED)
    return not is_foreign and not file.endswith(_PROGRAMS)
