"""What can be learnt from the words of real launchers."""

from __future__ import annotations

import pytest

from hvdtrain.launch.words import Ending, find_ending
from tests.unit import launcher_words as words

ENDINGS = {
    "OPENMPI4_KILLED": Ending(1, "vm", "was ended by signal 9 (Killed)", is_own_doing=False, signal=9),
    "OPENMPI4_LEFT": Ending(1, None, "left with exit code 3"),
    "OPENMPI4_ABORT": Ending(2, None, "called MPI_Abort with exit code 5", code=5),
    "OPENMPI4_LOST": Ending(None, "worker1", "no longer answers", is_own_doing=False),
    "OPENMPI5_KILLED": Ending(1, "vm", "was ended by signal 9 (Killed)", is_own_doing=False, signal=9),
    "OPENMPI5_LEFT": Ending(1, None, "left with exit code 3"),
    "OPENMPI5_ABORT": Ending(1, None, "called MPI_Abort with exit code 5", code=5),
    "MPICH_KILLED": Ending(None, "vm", "was ended by signal 9 (Killed)", is_own_doing=False, signal=9),
    "MPICH_ABORT": Ending(1, None, "called MPI_Abort with exit code 5", code=5),
    "OPENMPI4_LINES": None,
    "INTEL_KILLED": Ending(1, "vm", "was ended by signal 9 (Killed)", is_own_doing=False, signal=9),
    "MPICH_LEFT": Ending(None, "vm", "left with exit code 9"),
}


@pytest.mark.parametrize("name", words.ALL)
def test_find_ending_reads_rank_host_and_cause(name):
    assert find_ending(words.ALL[name]) == ENDINGS[name]


@pytest.mark.parametrize("first", ["OPENMPI4_ABORT", "OPENMPI4_LEFT"])
@pytest.mark.parametrize("second", ["OPENMPI4_KILLED", "OPENMPI4_LOST"])
def test_a_killed_process_is_the_cause_also_when_one_that_lost_it_fails_first(first, second):
    assert find_ending(words.ALL[first] + words.ALL[second]) == ENDINGS[second]


@pytest.mark.parametrize(
    ("first", "second"),
    [("OPENMPI4_ABORT", "OPENMPI4_LEFT"), ("OPENMPI4_LEFT", "OPENMPI5_ABORT"), ("MPICH_ABORT", "MPICH_KILLED")],
)
def test_the_first_process_that_left_is_the_cause(first, second):
    assert find_ending(words.ALL[first] + words.ALL[second]) == ENDINGS[first]


def test_find_ending_of_other_text_finds_none():
    assert find_ending("rank 1 exited on signal 9\nExit code: 3\n") is None
