"""Stop signals: finish the step, save, and leave together, whichever rank got the signal."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

import numpy as np

from hvdtrain.communicator import Communicator
from hvdtrain.errors import StoppedError

#: SIGUSR1 is what launchers pass on to their ranks without ending them.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopSignals:
    """While active, the first stop signal is remembered; a second one acts as it would have without."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self.number = 0
        self._previous: dict[int, Any] = {}

    @property
    def is_set(self) -> bool:
        """Whether this rank got a signal."""
        return self.number != 0

    def __enter__(self) -> StopSignals:
        """Take the signals over; only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            # What the shell told this process to ignore, as nohup does, stays ignored.
            for number in (n for n in _SIGNALS if signal.getsignal(n) is not signal.SIG_IGN):
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back."""
        self._give_back()

    def agree(self, communicator: Communicator) -> int:
        """Return, on every rank, the signal that any rank got, 0 for none; every rank must call."""
        return int(communicator.maximum(np.array([self.number]))[0])

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._give_back()

    def _give_back(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


def raise_stopped(number: int, global_step: int, run_dir: Path | None) -> NoReturn:
    """Raise what a signal ends a run with, on every rank.

    ``hvdtrain launch`` passes its own signal on as SIGUSR1, and puts name and number of that one in place.

    Raises:
        StoppedError: Always; its exit code is 128 plus the signal's number.
    """
    name = signal.Signals(number).name
    saved = ", without a run folder to save it in" if run_dir is None else ", which is saved. Continue with --resume"
    error = StoppedError(f"fit: stopped by {name} after step {global_step}{saved}.", 128 + number)
    error.is_agreed = True
    raise error
