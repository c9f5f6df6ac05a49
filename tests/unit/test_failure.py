from __future__ import annotations

import sys

import pytest

from hvdtrain.communicator import connect
from hvdtrain.errors import ConfigError, NonFiniteError, ReplicaError, StallError
from hvdtrain.failure import ends_all_ranks, exit_code_of
from tests.harness import run_command

# What several ranks do together is tested in tests/parallel/test_control_plane.py.

CODES = [
    (ConfigError("x"), 2),
    (StallError("x"), 3),
    (NonFiniteError("x"), 4),
    (ReplicaError("x"), 5),
    (ValueError("x"), 1),
    (MemoryError(), 1),
    (SystemExit(3), 3),
    (SystemExit(), 1),
    (SystemExit(0), 1),
    (SystemExit("a message"), 1),
    (KeyboardInterrupt(), 130),
]


@pytest.mark.parametrize(("error", "code"), CODES, ids=repr)
def test_exit_code_of_each_kind(error, code):
    assert exit_code_of(error) == code


@pytest.mark.parametrize("code", [256, 512, -256])
def test_exit_code_is_never_one_that_the_system_reads_as_0(code):
    # The system keeps the lowest eight bits.
    assert exit_code_of(SystemExit(code)) % 256 != 0


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
def test_ends_all_ranks_of_one_rank_passes_every_error_on(monkeypatch, error):
    monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", "1")  # set by connect, which lasts longer than this test
    with pytest.raises(type(error)) as caught, ends_all_ranks(connect()):
        raise error
    assert caught.value is error


def run_script(text, request, **env):
    environment = {"PYTHONPATH": str(request.config.rootpath), **env}
    return run_command([sys.executable, "-c", text], timeout_s=30, env=environment)


LEAVE = """
from hvdtrain.errors import ReplicaError
from hvdtrain.failure import leave
leave(ReplicaError("start: no."))
"""


def test_leave_prints_the_error_once_and_exits_with_its_code(request):
    finished = run_script(LEAVE, request)
    assert (finished.returncode, finished.stdout, finished.stderr) == (5, "", "hvdtrain: error: start: no.\n")


HOOK = """
from hvdtrain.errors import DataError
from hvdtrain.failure import install_excepthook
install_excepthook()
install_excepthook()
error = {error}
print("the script's own line")
raise error
"""


def test_excepthook_in_a_lone_process_leaves_foreign_errors_to_python(request):
    finished = run_script(HOOK.format(error="KeyError('w')"), request)
    assert finished.returncode == 1
    assert finished.stdout == "the script's own line\n"
    expected = "Traceback (most recent call last):\n  File \"<string>\", line 8, in <module>\nKeyError: 'w'\n"
    assert finished.stderr == expected


def test_excepthook_prints_our_own_errors_as_one_line_and_exits_with_their_code(request):
    finished = run_script(HOOK.format(error="DataError('stack: no.')"), request)
    assert finished.returncode == 2
    assert finished.stderr == "hvdtrain: error: stack: no.\n"
