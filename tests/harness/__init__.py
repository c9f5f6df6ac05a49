"""What the tests start processes with. It knows no framework, and importing it starts no MPI."""

from __future__ import annotations

from tests.harness.company import in_company, locked
from tests.harness.launches import Finished, Launch, find_processes, run_command, start_command
from tests.harness.mpi import mpirun, mpirun_command
from tests.harness.ranks import run_ranks
from tests.harness.reports import RankReport
from tests.harness.requirements import require
from tests.harness.verdicts import assert_on_all_ranks

__all__ = [
    "Finished",
    "Launch",
    "RankReport",
    "assert_on_all_ranks",
    "find_processes",
    "in_company",
    "locked",
    "mpirun",
    "mpirun_command",
    "require",
    "run_command",
    "run_ranks",
    "start_command",
]
