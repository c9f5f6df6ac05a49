"""What one rank tells the driver at the end of its pytest session. Standard library only."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

#: Folder that the ranks write their reports into.
REPORT_FOLDER = "HVDTRAIN_TEST_REPORTS"
#: Seconds after which every rank prints where it stands.
DUMP_AFTER_S = "HVDTRAIN_TEST_DUMP_AFTER_S"


@dataclass(frozen=True)
class RankReport:
    """Outcome of every test on one rank, by node id; ``failure_text`` holds all tracebacks."""

    rank: int
    passed: tuple[str, ...]
    failed: tuple[str, ...]
    skipped: tuple[str, ...]
    failure_text: str

    def write(self, folder: Path) -> None:
        """Put the report into the folder, whole or not at all."""
        part = folder / f"rank-{self.rank}.part"
        part.write_text(json.dumps(asdict(self)))
        part.rename(part.with_suffix(".json"))

    @classmethod
    def read_all(cls, folder: Path) -> list[RankReport]:
        """Return the reports in the folder by rank."""
        loaded = [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]
        lists = ("passed", "failed", "skipped")
        reports = [cls(**{**item, **{name: tuple(item[name]) for name in lists}}) for item in loaded]
        return sorted(reports, key=lambda report: report.rank)


def launched_rank_and_size() -> tuple[int, int]:
    """Return rank and size from the launcher's environment; 0 and 1 without a launcher."""
    for rank, size in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")):
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1
