"""Stop signals: finish the step, save, and leave together, whichever rank got the signal."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

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
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back."""
        self._give_back()

    def leave_if_any(self, communicator: Communicator, global_step: int) -> None:
        """Raise on every rank when any rank got a signal; every rank must call.

        Raises:
            StoppedError: Its exit code is 128 plus the signal's number.
        """
        highest = communicator.maximum(np.array([self.number]))
        if not highest[0]:
            return
        number = signal.SIGTERM if highest[0] == signal.SIGUSR1 else signal.Signals(int(highest[0]))
        error = StoppedError(
            f"fit: stopped by {number.name} after step {global_step}, which is saved. Continue with --resume.",
            128 + number,
        )
        error.is_agreed = True
        raise error

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._give_back()

    def _give_back(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
