"""The control plane, the loop and the ways a launch ends, under real mpirun and without a framework."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.harness import in_company, mpirun, run_command, run_ranks

PROJECT = Path(__file__).parents[2]

#: A run of the NumPy trainer with a callback that acts after a step; ``{action}`` is its body.
SCRIPT = """
import os, sys, time
from hvdtrain.callbacks import Callback
from hvdtrain.config import TrainConfig
from tests.unit.numpy_trainer import Linear, NumpyTrainer, make_samples, squared_error


class Act(Callback):
    def on_step_end(self, trainer, report):
        rank, step = trainer.topology.rank, report.global_step
{action}


config = TrainConfig(global_batch_size=4, epochs=2)
trainer = NumpyTrainer(Linear(), loss=squared_error, config=config, callbacks=[Act()])
trainer.fit(make_samples(10))
print("after fit", flush=True)
"""


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_control_plane_holds_on_several_ranks(num_ranks):
    run_ranks("tests/parallel/ranked/test_control_plane.py", num_ranks=num_ranks, timeout_s=60)


def launch(tmp_path, action, *, num_ranks=2, script=SCRIPT, timeout_s=30):
    path = tmp_path / "script.py"
    path.write_text(script.format(action="\n".join(f"        {line}" for line in action.splitlines())))
    env = {"PYTHONPATH": str(PROJECT)}
    return mpirun(num_ranks, "python", str(path), timeout_s=timeout_s, env=env, tagged=True)


def lines_of_ranks(finished):
    """Return what ranks wrote to stderr, without the launcher's own lines and its tags."""
    lines = finished.stderr.splitlines()
    return [line.split(":", 1)[1] for line in lines if re.match(r"\[\d+,\d+\]<stderr>:", line)]


def test_run_without_trouble_exits_with_0(tmp_path):
    finished = launch(tmp_path, "pass")
    assert (finished.returncode, lines_of_ranks(finished)) == (0, [])
    assert finished.stdout.count("after fit") == 2


def test_error_of_one_rank_ends_the_launch_while_another_sleeps(tmp_path):
    finished = launch(tmp_path, "if rank == 1:\n    raise KeyError('step 1')\ntime.sleep(60)")
    lines = lines_of_ranks(finished)
    assert finished.returncode == 1
    assert finished.seconds < in_company(15)
    assert lines[0] == "hvdtrain: this rank failed and ends the job [rank 1 of 2]"
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "KeyError: 'step 1' [rank 1 of 2]"
    assert finished.output.count("Traceback") == 1
    assert "after fit" not in finished.stdout


def test_error_of_all_ranks_at_once_is_printed_once(tmp_path):
    finished = launch(tmp_path, "raise KeyError(f'rank {rank}')", num_ranks=3)
    lines = lines_of_ranks(finished)
    assert finished.returncode == 1
    assert finished.seconds < in_company(15)
    assert finished.output.count("Traceback") == 1
    assert re.fullmatch(r"KeyError: 'rank (\d)' \[rank \1 of 3\]", lines[-1])


def test_own_error_of_one_rank_is_one_line_with_its_exit_code(tmp_path):
    action = "from hvdtrain.errors import DataError\nif rank == 1:\n    raise DataError('stack: no.')\ntime.sleep(60)"
    finished = launch(tmp_path, action)
    assert finished.returncode == 2
    assert finished.seconds < in_company(15)
    assert lines_of_ranks(finished) == ["hvdtrain: error: stack: no. [rank 1 of 2]"]


def test_system_exit_of_one_rank_ends_the_launch_with_its_code(tmp_path):
    finished = launch(tmp_path, "if rank == 1:\n    sys.exit(3)\ntime.sleep(60)")
    assert finished.returncode == 3
    assert finished.seconds < in_company(15)
    assert lines_of_ranks(finished)[-1] == "SystemExit: 3 [rank 1 of 2]"


def test_memory_error_of_one_rank_names_it_last(tmp_path):
    finished = launch(tmp_path, "if rank == 1:\n    raise MemoryError")
    assert finished.returncode == 1
    assert lines_of_ranks(finished)[-1] == "MemoryError [rank 1 of 2]"


def test_replicas_that_differ_exit_with_5_and_one_line(tmp_path):
    finished = launch(tmp_path, "trainer.model.weight[1] += rank")
    assert finished.returncode == 5
    assert lines_of_ranks(finished) == [
        "hvdtrain: error: step 6: all ranks must hold the same state, got a difference in 'weight' between rank 0 and "
        "rank 1; 1 of 2 tensors differ. Something changed weights on some ranks alone, such as a callback."
    ]


@pytest.fixture(scope="module")
def nonfinite(tmp_path_factory):
    """A launch in which row 7, which rank 1 holds in the second batch, has no finite loss."""
    script = SCRIPT.replace("epochs=2)", "epochs=2, shuffle=False)").replace(
        "trainer.fit(make_samples(10))",
        "data = make_samples(10)\ndata.columns['y'][7] = float('nan')\ntrainer.fit(data)",
    )
    return launch(tmp_path_factory.mktemp("nonfinite"), "pass", script=script)


def test_nonfinite_loss_of_one_rank_exits_with_4_and_one_line(nonfinite):
    (line,) = lines_of_ranks(nonfinite)
    assert nonfinite.returncode == 4
    assert line.startswith("hvdtrain: error: step 2: loss and gradient must be finite, got loss sum nan")


def test_nonfinite_loss_names_rank_and_rows(nonfinite):
    (line,) = lines_of_ranks(nonfinite)
    assert "rank 1" in line
    assert "7" in line


def test_error_that_all_ranks_share_ends_the_launch_at_once(nonfinite):
    assert nonfinite.seconds < in_company(10)


#: An error that a user's script raises outside fit, after the ranks have met.
AFTER_FIT = SCRIPT.replace('print("after fit", flush=True)', "if trainer.topology.rank == 1:\n    {after}")


def test_error_after_fit_on_one_rank_ends_the_launch(tmp_path):
    script = AFTER_FIT.replace("{after}", "raise KeyError('later')\ntime.sleep(60)")
    finished = launch(tmp_path, "pass", script=script)
    assert finished.returncode == 1
    assert finished.seconds < in_company(15)
    assert lines_of_ranks(finished)[-1] == "KeyError: 'later' [rank 1 of 2]"


#: An error inside the data of one rank, which ``together`` raises on all.
IN_DATA = """
import time
from hvdtrain.communicator import connect
from hvdtrain.failure import ends_all_ranks

communicator = connect()


def read_my_file():
    if communicator.topology.rank == 1:
        raise OSError("rank 1 has no such file")


with ends_all_ranks(communicator):
    communicator.together(read_my_file)
"""


def test_error_that_all_ranks_raise_shows_the_traceback_of_the_one_that_failed(tmp_path):
    finished = launch(tmp_path, "", script=IN_DATA)
    lines = lines_of_ranks(finished)
    assert finished.returncode == 1
    assert finished.output.count("Traceback") == 1
    assert lines[-1] == "OSError: rank 1 has no such file [rank 1 of 2]"
    assert any("read_my_file" in line for line in lines[:-1])


JOB = """
import hvdtrain

config = hvdtrain.TrainConfig(global_batch_size=4)


def train_data():
    return [1, 2]


def torch_model(): ...
def torch_loss(model, batch): ...
"""


def test_launch_in_which_mpi_sees_another_size_than_the_launcher_is_refused(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    finished = run_command(
        [sys.executable, "-m", "hvdtrain", "train", "job.py"],
        timeout_s=30,
        cwd=tmp_path,
        env={"PYTHONPATH": str(PROJECT), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"},
    )
    assert finished.stderr == (
        "hvdtrain: error: connect: MPI must see the ranks that the launcher started, got size 1 from MPI and size 2 "
        "from Open MPI's mpirun. Launch with the mpirun of the MPI that Horovod and mpi4py were built with, by "
        "'hvdtrain launch', 'mpirun' or 'horovodrun --mpi'.\n"
    )
    assert finished.returncode == 2


def test_own_script_in_which_mpi_sees_another_size_exits_with_2(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(action="        pass"))
    finished = run_command(
        [sys.executable, str(path)],
        timeout_s=30,
        cwd=tmp_path,
        env={"PYTHONPATH": str(PROJECT), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"},
    )
    assert "connect: MPI must see the ranks that the launcher started" in finished.stderr
    assert finished.returncode == 2
