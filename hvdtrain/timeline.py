"""The file of Horovod's timeline, which Horovod 0.28.1 leaves out with a line in its log where it cannot write."""

from __future__ import annotations

from collections.abc import Mapping

from hvdtrain.errors import ConfigError

#: Names the file; Horovod reads it when it starts.
TIMELINE = "HOROVOD_TIMELINE"

#: In the place of a file: the timeline is begun later, by a call.
_LATER = "DYNAMIC"


def require_timeline(environ: Mapping[str, str]) -> None:
    """Refuse a timeline that cannot be written; what can is created, empty. The root alone writes one.

    Args:
        environ: The environment of the process.

    Raises:
        ConfigError: The variable names a folder, or a file that cannot be opened.
    """
    path = environ.get(TIMELINE)
    if not path or path == _LATER:
        return
    try:
        with open(path, "ab"):
            pass
    except OSError as error:
        raise ConfigError(
            f"start: {TIMELINE} must name a file that can be written, got {path!r} ({error.strerror}). "
            "Name a file, such as timeline.json, in a folder that exists."
        ) from error
