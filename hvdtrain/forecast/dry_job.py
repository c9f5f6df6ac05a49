"""The job of a dry run: the user's, with a short evaluation and a callback that keeps it in company."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hvdtrain.callbacks import Callback
from hvdtrain.data import Structure
from hvdtrain.forecast.side_by_side import Company, SideBySide
from hvdtrain.job import load_job
from hvdtrain.job_options import current_options

#: Samples of an evaluation that are enough to need the memory of one.
_NUM_EVAL_SAMPLES = 256

_TEXT = """\
from pathlib import Path, PosixPath
from hvdtrain.forecast.dry_job import job_names
from hvdtrain.forecast.side_by_side import Company
globals().update(job_names(Path({job!r}), {company!r}))
"""


def write_job(job: Path, company: Company, path: Path) -> None:
    """Write the job file of one dry run of ``job``."""
    path.write_text(_TEXT.format(job=str(job.resolve()), company=company))


def job_names(job: Path, company: Company) -> dict[str, Any]:
    """Return what the user's job file defines, with other ``eval_data`` and ``callbacks``."""
    loaded = load_job(job, current_options())
    names = {name: value for name, value in vars(loaded.module).items() if not name.startswith("__")}
    make_eval, make_callbacks = loaded.function("eval_data"), loaded.function("callbacks")

    def callbacks() -> Sequence[Callback]:
        return [*(make_callbacks() if make_callbacks is not None else ()), SideBySide(company)]

    names["callbacks"] = callbacks
    if make_eval is not None:
        names["eval_data"] = _first_of(make_eval)
    return names


def _first_of(make: Callable[[], Any]) -> Callable[[], Any]:
    def eval_data() -> Any:
        data = make()
        return None if data is None else Head(data)

    return eval_data


class Head:
    """The beginning of a data set."""

    def __init__(self, data: Any) -> None:
        """Begin where ``data`` does."""
        self._data = data

    def __len__(self) -> int:
        """Return the number of samples."""
        return min(len(self._data), _NUM_EVAL_SAMPLES)

    def __getitem__(self, index: int) -> Structure:
        """Return one sample."""
        sample: Structure = self._data[index]
        return sample
