"""Every code block of README.md is run, or names the test that runs what it shows; its tables are those of the code."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hvdtrain import errors
from hvdtrain.callbacks import Callback
from tests.examples.readme_blocks import (
    PROJECT,
    README,
    Block,
    command_lines,
    find_fault,
    known_options,
    option_table,
    read_blocks,
    read_table,
)
from tests.harness import Finished, require, run_command

BLOCKS = read_blocks(README.read_text())
HERE = "tests/examples/test_readme.py"
MOVING = "tests/parity/test_moving.py::test_loop_and_job_end_at_the_same_weights"
#: Block -> the tests that run it, or what it shows. Each bash block is also read by the real command line here.
COVER = {
    "Two commands / bash 1": (
        "tests/examples/test_examples.py::test_quickstart_reaches_the_accuracy_in_both_frameworks",
        "tests/unit/test_run_sh.py::test_run_sh_adds_up_all_test_stages",
    ),
    "A job file / python 1": (f"{HERE}::test_runs_begun_alike_are_the_same_in_both_frameworks",),
    "A job file / python 2": (f"{HERE}::test_other_framework_continues_under_the_names_of_the_job",),
    "Start it / bash 1": (
        "tests/parallel/test_launchers.py::test_mpirun_gives_the_expected_summary",
        "tests/parallel/test_launchers.py::test_horovodrun_gives_the_summary_of_mpirun",
        "tests/parallel/test_launchers.py::test_hvdtrain_launch_gives_the_summary_of_mpirun",
        "tests/parallel/test_launchers.py::test_plain_run_differs_in_size_only_and_needs_one_framework",
        "tests/cluster/test_same_run.py::test_four_ranks_on_two_hosts_equal_one_process",
    ),
    "Start it / bash 2": (
        f"{HERE}::test_files_for_other_launchers_are_printed",
        "tests/examples/test_launch_files.py::test_sbatch_starts_its_job_on_the_nodes_of_the_allocation",
        "tests/parallel/test_doctor.py::test_two_hosts_are_measured_over_the_wire_between_them",
    ),
    "Start it / bash 3": ("tests/cluster/test_same_run.py::test_four_ranks_on_two_hosts_equal_one_process",),
    "While it runs / bash 1": (f"{HERE}::test_runs_are_reported_inspected_and_timed",),
    "While it runs / text 1": (f"{HERE}::test_hooks_come_as_the_loop_is_drawn",),
    "While it runs / python 1": (f"{HERE}::test_callback_stops_all_ranks_after_the_next_step",),
    "Stop and continue / bash 1": (f"{HERE}::test_stopped_run_is_continued_to_the_same_bits",),
    "Stop and continue / python 1": (f"{HERE}::test_own_script_saves_and_its_weights_load",),
    "Stop and continue / python 2": (f"{HERE}::test_own_script_saves_and_its_weights_load",),
    "Prove it on your own job / bash 1": (
        "tests/parity/test_command.py::test_parity_of_digits_exits_0_and_draws_the_curves",
    ),
    "Prove it on your own job / bash 2": (f"{HERE}::test_runs_begun_alike_are_the_same_in_both_frameworks",),
    "Plan a run / bash 1": ("tests/bench/test_plan.py::test_plan_foretells_what_bench_measures_on_two_ranks",),
    "When something fails / bash 1": ("tests/cluster/test_lost_host.py::test_restarts_go_on_without_the_dead_host",),
    "When something fails / text 1": ("tests/parallel/test_watchdog.py::test_a_sleeping_callback_is_rank_only_work",),
    "Moving here / python 1": (MOVING,),
    "Before: DistributedDataParallel, `ddp.py` / python 1": (MOVING,),
    "Before: DeepSpeed, `ds.py` / python 1": (MOVING,),
    "Before: plain Horovod, `plain.py` / python 1": (MOVING,),
    "Before: tf.distribute, `mirrored.py` / python 1": (MOVING,),
    "After: the job of any of them, `moved.py` / python 1": (MOVING,),
    "After: the job of any of them, `moved.py` / bash 1": (MOVING,),
}
TIMEOUT_S = 240
ENVIRONMENT = {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
    "OMP_NUM_THREADS": "1",
}
#: What the job of this README makes of 5 epochs of 800 samples in global batches of 64.
NUM_STEPS = 65
JOB = BLOCKS["A job file / python 1"].text


def run_script(script: str, folder: Path) -> Finished:
    """Run a script of bash to its end; all of its lines must succeed."""
    finished = run_command(["bash", "-euc", script], timeout_s=TIMEOUT_S, env=ENVIRONMENT, cwd=folder)
    assert finished.returncode == 0, finished.output
    return finished


def make_folder(folder: Path, *parts: str) -> Path:
    """Write the job of this README, with more behind it, into a new folder."""
    folder.mkdir(parents=True)
    (folder / "job.py").write_text("\n\n".join([JOB, *parts]))
    return folder


def weights(run: Path, step: int = NUM_STEPS) -> dict[str, np.ndarray]:
    return load_file(run / f"checkpoints/step-{step:08d}/model.safetensors")


def summary(run: Path) -> dict[str, object]:
    return json.loads((run / "summary.json").read_text())


# ---------------------------------------------------------------- every block
def uncovered(blocks: dict[str, Block]) -> list[str]:
    """Return the blocks without cover, and the covers without a block."""
    return sorted(blocks.keys() ^ COVER.keys())


def test_every_block_has_its_cover():
    assert uncovered(BLOCKS) == []


def test_block_without_cover_is_seen():
    more = README.read_text() + "\n```bash\nhvdtrain train job.py\n```\n"
    assert len(uncovered(read_blocks(more))) == 1


@pytest.mark.parametrize("test", sorted({test for tests in COVER.values() for test in tests}))
def test_cover_exists(test):
    path, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (PROJECT / path).read_text(), re.M)


@pytest.mark.parametrize("key", [key for key, block in BLOCKS.items() if block.language == "bash"])
def test_command_lines_are_ones_that_exist(key):
    lines = [*command_lines(BLOCKS[key].text)]
    assert lines
    assert [(words, fault) for words in lines if (fault := find_fault(words))] == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("hvdtrain trian job.py", "no such command"),
        ("hvdtrain train job.py --epoch 3", "'--epoch'"),
        ("hvdtrain train job.py --epochs three", "'--epochs'"),
        ("hvdtrain train job.py --optimizer rmsprop", "rmsprop"),
        ("hvdtrain train examples/shakespeare.py --size huge", "huge"),
        ("hvdtrain train examples/shakespeer.py", "shakespeer"),
        ("hvdtrain parity job.py -np 2 --epoch 2", "'--epoch'"),
        ("hvdtrain launch -n 2 -- hvdtrain train job.py", "-n"),
        ("hvdtrain launch -np 2 -- hvdtrain train job.py --framwork torch > log", "'--framwork'"),
        ("mpirun -np 2 hvdtrain train job.py --framwork torch", "'--framwork'"),
        ("X=1 horovodrum -np 2 hvdtrain train job.py", "horovodrum"),
        ("docker/cluster.sh up --worker 2", "'--worker'"),
        ("docker/cluster.sh run -- --epoch 3", "'--epoch'"),
        ("bash examples/quickstart.sh; bash examples/slowstart.sh", "slowstart"),
    ],
)
def test_wrong_line_is_seen(line, said):
    (fault,) = [fault for words in command_lines(line) if (fault := find_fault(words))]
    assert said in fault


def options_in_text(text: str) -> set[str]:
    """Return the long options that stand in the text between blocks, as code."""
    return set(re.findall(r"`[^`\n]*?(?<![\w-])(--[a-z][a-z-]+)", re.sub(r"```.*?```", "", text, flags=re.S)))


def test_options_in_the_text_exist():
    of_others = {"--binding-args"}  # of horovodrun
    found = options_in_text(README.read_text())
    assert "--allow-config-change" in found
    assert found - known_options() - of_others == set()


def test_wrong_option_in_the_text_is_seen():
    assert options_in_text("use `hvdtrain train --epoch 3`") - known_options() == {"--epoch"}


# ---------------------------------------------------------------- blocks that run here
def test_files_for_other_launchers_are_printed(tmp_path):
    (tmp_path / "hosts").write_text("worker1 slots=2\nworker2 slots=2\n")
    lines = BLOCKS["Start it / bash 2"].text.splitlines()
    run_script("\n".join(line for line in lines if "--print" in line), tmp_path)
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert "#SBATCH --nodes=2" in written["job.sbatch"]
    assert "kind: MPIJob" in written["job.yaml"]
    assert "services:" in written["compose.yaml"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder in which the lines of "Stop and continue" ran."""
    require("torch")
    folder = make_folder(tmp_path_factory.mktemp("readme") / "stopped")
    run_script(BLOCKS["Stop and continue / bash 1"].text, folder)
    return folder


def test_stopped_run_is_continued_to_the_same_bits(stopped):
    first, again = weights(stopped / "runs/part"), weights(stopped / "runs/again")
    assert {name: np.array_equal(first[name], again[name]) for name in first} == dict.fromkeys(first, True)
    assert summary(stopped / "runs/again")["ledger"]["train"] == {"once": 800, "more": 0, "never": 0}
    rows = [json.loads(line) for line in (stopped / "runs/part/metrics.jsonl").read_text().splitlines()]
    # Each epoch's end, and step 40, where the first line stopped.
    assert [row["global_step"] for row in rows if row["event"] == "eval"] == [13, 26, 39, 40, 52, 65]


def test_other_framework_continues_under_the_names_of_the_job(stopped):
    require("tensorflow")
    folder = make_folder(stopped / "named", BLOCKS["A job file / python 2"].text)
    middle = stopped / "runs/part/checkpoints/step-00000026"
    run_script(f"hvdtrain launch -np 2 -- hvdtrain train job.py --framework tensorflow --resume-from {middle}", folder)
    first, other = weights(stopped / "runs/part"), weights(folder / "runs/job-tensorflow")
    assert first.keys() == other.keys() == {"fc.weight", "fc.bias"}
    for name in first:
        np.testing.assert_allclose(other[name], first[name], rtol=1e-5, atol=1e-6)


def test_own_script_saves_and_its_weights_load(stopped):
    folder = make_folder(stopped / "own")
    (folder / "train.py").write_text(BLOCKS["Stop and continue / python 1"].text)
    show = "print([tensor.tolist() for tensor in model.state_dict().values()])\n"
    (folder / "load.py").write_text(BLOCKS["Stop and continue / python 2"].text + show)
    finished = run_script("hvdtrain launch -np 2 -- python train.py\npython load.py", folder)
    loss, saved = summary(folder / "runs/own")["eval"]["loss"], weights(folder / "runs/own")
    assert finished.stdout.splitlines() == [str(loss), str([saved[name].tolist() for name in ("fc.weight", "fc.bias")])]
    # Two ranks of a script of one's own, and one of hvdtrain train, are the same run.
    for name, array in weights(stopped / "runs/part").items():
        np.testing.assert_allclose(weights(folder / "runs/own")[name], array, rtol=1e-5, atol=1e-6)


UNBUILT = """
import keras
import hvdtrain
from job import config, tensorflow_loss, train_data
from safetensors.numpy import load_file


def model():
    return keras.Sequential([keras.layers.Dense(1, name="fc")])


config = config.replace(max_steps=1)
hvdtrain.TensorFlowTrainer(model, loss=tensorflow_loss, config=config, run_dir="runs/unbuilt").fit(train_data())
path, other = "runs/unbuilt/checkpoints/step-00000001", model()
try:
    hvdtrain.load_weights(other, path)
except hvdtrain.HvdTrainError as error:
    print(type(error).__name__)
other(keras.ops.zeros((1, 8)))
hvdtrain.load_weights(other, path)
kernel, bias = other.get_weights()
saved = load_file(f"{path}/model.safetensors")
print((kernel.T == saved["fc.weight"]).all() and (bias == saved["fc.bias"]).all())
"""


def test_keras_model_without_input_trains_and_loads_once_it_is_built(tmp_path):
    require("tensorflow")
    folder = make_folder(tmp_path / "unbuilt")
    (folder / "unbuilt.py").write_text(UNBUILT)
    assert run_script("python unbuilt.py", folder).stdout.splitlines() == ["CheckpointError", "True"]


@pytest.fixture(scope="module")
def alike(tmp_path_factory):
    """The folder in which the lines of "Prove it on your own job" ran, and what they printed."""
    require("torch")
    require("tensorflow")
    folder = make_folder(tmp_path_factory.mktemp("readme") / "alike")
    for name, run in (("job-torch", "a"), ("job-tensorflow", "b")):
        (folder / "runs").mkdir(exist_ok=True)
        (folder / "runs" / name).symlink_to(run)
    return folder, run_script(BLOCKS["Prove it on your own job / bash 2"].text, folder)


def test_runs_begun_alike_are_the_same_in_both_frameworks(alike):
    folder, finished = alike
    assert "same" in finished.stdout.split(), finished.stdout
    runs = [summary(folder / f"runs/{name}") for name in "ab"]
    assert [(run["framework"], run["size"], run["global_step"]) for run in runs] == [
        ("torch", 2, NUM_STEPS),
        ("tensorflow", 2, NUM_STEPS),
    ]


def test_runs_are_reported_inspected_and_timed(alike):
    folder, _ = alike
    lines = BLOCKS["While it runs / bash 1"].text.splitlines()
    short = [f"{line} --repeats 1 --steps 5 --warm-up 2" if "bench" in line else line for line in lines]
    finished = run_script("\n".join(short), folder)
    assert "fc.weight" in finished.stdout
    assert "<svg" in (folder / "job.html").read_text()
    (measured,) = folder.glob("runs/job-bench*/bench.json")
    assert json.loads(measured.read_text())


# ---------------------------------------------------------------- callbacks
HOOKS = [name for name in vars(Callback) if not name.startswith("_")]
RECORDER = f"""
import os


class Recorder(hvdtrain.Callback):
    pass


for name in {HOOKS}:

    def record(self, *arguments, name=name):
        with open(f"hooks-{{os.environ['OMPI_COMM_WORLD_RANK']}}", "a") as file:
            file.write(f"{{name}} ")

    setattr(Recorder, name, record)
of_the_readme = callbacks


def callbacks():
    return [*of_the_readme(), Recorder()]
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """The folder of a run on two ranks that the README's callback stops after its first evaluation."""
    require("torch")
    callback = BLOCKS["While it runs / python 1"].text
    assert callback.count("1e-6") == 1
    folder = make_folder(tmp_path_factory.mktemp("readme") / "watched", callback.replace("1e-6", "1e6"), RECORDER)
    run_script(
        "hvdtrain launch -np 2 -- hvdtrain train job.py --framework torch --save-every-steps 5 --eval-every-epochs 1",
        folder,
    )
    return folder


def test_callback_stops_all_ranks_after_the_next_step(watched):
    assert summary(watched / "runs/job-torch")["global_step"] == 13 + 1


def test_hooks_come_as_the_loop_is_drawn(watched):
    drawn = re.findall(r"\b(on_\w+|close)\b", BLOCKS["While it runs / text 1"].text)
    assert set(drawn) == set(HOOKS)
    root, other = ((watched / f"hooks-{rank}").read_text() for rank in (0, 1))
    # As drawn: an epoch of 13 steps with its evaluation, then what the stop leaves of the second one.
    step = "on_step_end (on_checkpoint )*"
    epoch = f"({step}){{13}}on_epoch_end on_evaluate "
    last = f"({step})on_epoch_end on_evaluate (on_checkpoint )+on_fit_end close "
    assert re.fullmatch(f"on_fit_begin {epoch}{last}", root), root
    assert drawn == [
        *("on_fit_begin", "on_step_end", "on_checkpoint", "on_epoch_end", "on_evaluate"),
        *("on_evaluate", "on_checkpoint", "on_fit_end", "close"),
    ]
    assert root.count("on_checkpoint") == 3  # steps 5, 10 and 14
    assert re.sub("on_checkpoint ", "", root) == other


# ---------------------------------------------------------------- tables
def test_options_are_those_of_train_config():
    assert option_table() in README.read_text(), f"put this table into README.md:\n{option_table()}"


def test_exit_codes_are_those_of_the_errors():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {str(kind.exit_code) for kind in kinds if issubclass(kind, errors.HvdTrainError)}
    told = [code for code, _ in read_table(README.read_text(), "Exit codes")]
    assert told == [*sorted({"0"} | codes), "128 + n"]


def test_tested_versions_are_the_pinned_ones():
    pins = dict(re.findall(r"^([\w-]+)==([\d.]+)", (PROJECT / "docker/pins.txt").read_text(), re.M))
    told = README.read_text().split("\n## Tested versions\n")[1].split("\n## ")[0]
    for title, package in (("PyTorch", "torch"), ("TensorFlow", "tensorflow-cpu"), ("Keras", "keras")):
        (version,) = re.findall(rf"{title} ([\d.]+\d)", told)
        assert f"{pins[package]}.".startswith(f"{version}."), title
    horovod = re.search(r"^HOROVOD_VERSION=([\d.]+)", (PROJECT / "docker/install.sh").read_text(), re.M)[1]
    assert f"Horovod {horovod}," in told
