"""Dry runs of one host at the same time, so that each has the company that a rank has, but no communication."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hvdtrain.callbacks import Callback, StepReport
from hvdtrain.errors import StallError

if TYPE_CHECKING:
    from hvdtrain.trainer import Trainer

_WAIT_S = 600.0


@dataclass(frozen=True)
class Company:
    """What one dry run knows of itself and of those beside it.

    Attributes:
        folder: Where they tell each other how far they are.
        index: This one, from 0.
        count: All of them.
        warm_up: Steps before the ones that count.
        num_steps: Steps that count, at least.
        seconds: Time that they take, at least.
    """

    folder: Path
    index: int
    count: int
    warm_up: int
    num_steps: int
    seconds: float

    def arrive(self, place: str) -> None:
        """Tell the others that this one is there."""
        (self.folder / f"{place}-{self.index}").touch()

    def is_complete(self, place: str) -> bool:
        """Return whether all are there."""
        return all((self.folder / f"{place}-{index}").exists() for index in range(self.count))


class SideBySide(Callback):
    """Begins the steps that count when all have warmed up, and goes on until all have made theirs."""

    def __init__(self, company: Company) -> None:
        """Keep step with ``company``."""
        self._company = company
        self._began = 0.0

    def on_step_end(self, trainer: Trainer, report: StepReport) -> None:
        """Wait at the end of the warm-up, and stop when nobody needs this one any more."""
        company, counted = self._company, report.global_step - self._company.warm_up
        if counted == 0:
            company.arrive("warm")
            self._wait("warm")
            self._began = time.monotonic()
        elif counted >= company.num_steps and time.monotonic() - self._began >= company.seconds:
            company.arrive("done")
            if company.is_complete("done"):
                trainer.request_stop()

    def _wait(self, place: str) -> None:
        limit = time.monotonic() + _WAIT_S
        while not self._company.is_complete(place):
            if time.monotonic() > limit:
                raise StallError(f"plan: all dry runs must warm up within {_WAIT_S:.0f} s. Look at what the others do.")
            time.sleep(0.002)
