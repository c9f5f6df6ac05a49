"""What can go wrong, by kind. Each kind knows the exit code that the job ends with.

A message reads ``<where>: <rule>, got <value>. <what to do>.`` and stands on its own: it is printed without a
traceback, because every one of these is meant for the person who wrote the job.
"""

from __future__ import annotations


class HvdTrainError(Exception):
    """Base of every error that this package raises on purpose."""

    exit_code = 1

    #: True once every rank of the job raises this same error, so that nobody waits for the others.
    is_agreed = False


class ConfigError(HvdTrainError, ValueError):
    """A setting, an option or a job file breaks a rule."""

    exit_code = 2


class DataError(HvdTrainError, ValueError):
    """The data set, a sample or what a loss returned has the wrong form."""

    exit_code = 2


class AdapterError(HvdTrainError, RuntimeError):
    """A framework is unknown, not installed, or asked for something that it cannot do."""

    exit_code = 2


class RankError(HvdTrainError, RuntimeError):
    """Ranks disagree on something that must be equal before training can start."""

    exit_code = 2


class CheckpointError(HvdTrainError, RuntimeError):
    """A checkpoint cannot be written, read, or used for this job."""

    exit_code = 2


class StallError(HvdTrainError, RuntimeError):
    """Nothing has moved for longer than ``stall_timeout_s``."""

    exit_code = 3


class ElsewhereError(HvdTrainError, RuntimeError):
    """Another rank failed; it reports, and this rank only has to end."""


class StoppedError(HvdTrainError, RuntimeError):
    """A signal stopped the run, in good order."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        """Keep the exit code, 128 plus the signal's number."""
        super().__init__(message)
        self.exit_code = exit_code


class NonFiniteError(HvdTrainError, ArithmeticError):
    """A loss or a gradient is infinite or not a number."""

    exit_code = 4


class ReplicaError(RankError):
    """Weights that must be equal on all ranks are not."""

    exit_code = 5
