"""``hvdtrain parity`` and ``hvdtrain compare`` on real jobs, and weights that travel between frameworks bit by bit."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.harness import Finished, in_company, require, run_command

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
JOBS = HERE / "jobs"
TIMEOUT_S = in_company(200)


def hvdtrain(*words: object) -> Finished:
    """Run the program to its end, one thread per rank."""
    command = [sys.executable, "-m", "hvdtrain", *map(str, words)]
    return run_command(command, timeout_s=TIMEOUT_S, cwd=PROJECT, env={"OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def parity(tmp_path_factory):
    """A function of a job: the finished command and the folder of its runs, made once."""
    done = {}

    def get(job: Path, *options: object) -> tuple[Finished, Path]:
        require("torch")
        require("tensorflow")
        if job not in done:
            folder = tmp_path_factory.mktemp(job.stem)
            done[job] = hvdtrain("parity", job, *options, "--run-dir", folder / "runs"), folder / "runs"
        return done[job]

    return get


@pytest.fixture(scope="module")
def digits(parity):
    return parity(PROJECT / "examples" / "digits.py", "-np", 2, "--max-steps", 60)


@pytest.fixture(scope="module")
def native(parity):
    return parity(JOBS / "native_sgd.py", "-np", 1, "--trace", 1, "--max-steps", 12)


@pytest.fixture(scope="module")
def normed(parity):
    return parity(JOBS / "normed.py", "-np", 1, "--max-steps", 12)


@pytest.fixture(scope="module")
def noisy(parity):
    return parity(JOBS / "noisy.py", "-np", 2, "--max-steps", 12)


def verdicts(output: str) -> list[str]:
    """Return the last column of the table, row by row."""
    return re.findall(r"(same|cannot be equal|DIFFERENT) +│$", output, re.M)


def test_parity_of_digits_exits_0_and_draws_the_curves(digits):
    finished, folder = digits
    assert finished.returncode == 0, finished.output
    assert verdicts(finished.stdout) == ["same"] * 4
    assert "first out of tolerance" not in finished.stdout
    assert finished.stdout.splitlines()[-1] == f"curves: {folder / 'parity.png'}"
    assert (folder / "parity.png").stat().st_size > 10_000
    assert finished.seconds < in_company(180)


def test_compare_of_digits_gives_the_verdict_of_parity(digits, tmp_path):
    _, folder = digits
    picture = tmp_path / "curves.png"
    finished = hvdtrain("compare", folder / "torch-2", folder / "tensorflow-1", "--picture", picture)
    assert finished.returncode == 0, finished.output
    assert verdicts(finished.stdout) == ["same"]
    assert picture.stat().st_size > 10_000


def test_compare_with_a_tolerance_below_rounding_exits_1(digits):
    _, folder = digits
    finished = hvdtrain("compare", folder / "torch-1", folder / "tensorflow-1", "--rtol", "1e-12")
    assert finished.returncode == 1, finished.output
    assert verdicts(finished.stdout) == ["DIFFERENT"]


# ---------------------------------------------------------------- a formula that is wrong
def faults(finished: Finished) -> list[str]:
    """Return the sentences that name a first fault, each on one line where the command has folded it."""
    unfolded = finished.stdout.replace("\n  ", " ")
    return [line for line in unfolded.splitlines() if "first out of tolerance" in line]


def test_parity_with_the_momentum_of_keras_exits_1_and_names_the_first_step(native):
    finished, _ = native
    assert finished.returncode == 1, finished.output
    assert verdicts(finished.stdout) == ["DIFFERENT"]
    (told,) = faults(finished)
    # Keras multiplies the rate into the momentum: that shows first where the momentum meets another rate, in step 2.
    pair = "torch x 1, tensorflow x 1: first out of tolerance: step 2"
    assert re.fullmatch(rf"{pair}: tensor (one|two)\.(weight|bias) differs by \d\.\d\de-0\d of its norm", told), told


def test_compare_of_a_wrong_formula_gives_the_verdict_and_step_of_parity(native):
    whole, folder = native
    finished = hvdtrain("compare", folder / "torch-1", folder / "tensorflow-1")
    assert (finished.returncode, verdicts(finished.stdout)) == (1, ["DIFFERENT"]), finished.output
    assert faults(finished) == faults(whole)


# ---------------------------------------------------------------- what cannot be equal
def test_parity_with_batch_norm_compares_all_but_the_running_statistics(normed):
    finished, _ = normed
    assert finished.returncode == 0, finished.output
    assert verdicts(finished.stdout) == ["same"]


def test_parity_with_dropout_and_batch_norm_exits_0_and_says_why(noisy):
    finished, _ = noisy
    assert finished.returncode == 0, finished.output
    assert verdicts(finished.stdout) == ["cannot be equal"] * 4
    reasons = [line for line in finished.stdout.splitlines() if ": cannot be equal: " in line]
    ranks = ("batch norm uses the statistics of each rank", "dropout draws other numbers on each rank")
    between = ("dropout draws other numbers in each framework",)
    pairs = [("torch x 1, torch x 2", ranks), ("tensorflow x 1, tensorflow x 2", ranks)]
    pairs += [(f"torch x {size}, tensorflow x {size}", between) for size in (1, 2)]
    assert reasons == [f"{pair}: cannot be equal: {reason}" for pair, told in pairs for reason in told]
    left_out = (
        "not compared: running statistics: batch norm keeps the unbiased variance in PyTorch, the biased in Keras"
    )
    unfolded = " ".join(finished.stdout.split())
    assert [f"torch x {size}, tensorflow x {size}: {left_out}" in unfolded for size in (1, 2)] == [True, True]


@pytest.mark.parametrize("job", ["normed", "noisy"])
def test_compare_of_what_cannot_be_equal_gives_the_verdict_of_parity(request, job):
    whole, folder = request.getfixturevalue(job)
    assert whole.returncode == 0, whole.output
    finished = hvdtrain("compare", folder / "torch-1", folder / "tensorflow-1")
    assert (finished.returncode, verdicts(finished.stdout)) == (0, verdicts(whole.stdout)[-1:]), finished.output


# ---------------------------------------------------------------- weights from one framework to the other
@pytest.fixture(scope="module")
def travelled(tmp_path_factory):
    """Arrays after no step, by run: born in one framework, and handed on from there."""
    folder = tmp_path_factory.mktemp("travelled")

    def start(name: str, framework: str, start_from: str | None) -> dict[str, np.ndarray]:
        require(framework)
        last = "checkpoints/step-00000000"
        more = ["--init-from", folder / start_from / last] if start_from else []
        finished = hvdtrain(
            "train", JOBS / "every_layer.py", "--framework", framework, "--run-dir", folder / name, *more
        )
        assert finished.returncode == 0, finished.output
        return load_file(folder / name / last / "model.safetensors")

    runs = {"torch": start("torch", "torch", None), "keras": start("keras", "tensorflow", None)}
    runs["torch to keras"] = start("torch to keras", "tensorflow", "torch")
    runs["torch to keras to torch"] = start("torch to keras to torch", "torch", "torch to keras")
    runs["keras to torch"] = start("keras to torch", "torch", "keras")
    return runs


SHAPES = {
    "table.weight": (5, 3),
    "norm.weight": (3,),
    "norm.bias": (3,),
    "batch.weight": (3,),
    "batch.bias": (3,),
    "batch.running_mean": (3,),
    "batch.running_var": (3,),
    "line.weight": (4, 3, 2),
    "line.bias": (4,),
    "plane.weight": (4, 3, 2, 3),
    "plane.bias": (4,),
    "depth.weight": (6, 1, 3, 2),
    "depth.bias": (6,),
    "fc.weight": (2, 3),
    "fc.bias": (2,),
}


@pytest.mark.parametrize(
    ("born", "travels"), [("torch", ["torch to keras", "torch to keras to torch"]), ("keras", ["keras to torch"])]
)
def test_weights_travel_between_frameworks_without_losing_a_bit(travelled, born, travels):
    first = travelled[born]
    assert len({*np.concatenate([first[name].ravel() for name in SHAPES]).tolist()}) > 100  # no value tells nothing
    for name in [born, *travels]:
        found = {key: array for key, array in travelled[name].items() if not key.endswith("num_batches_tracked")}
        assert {key: array.shape for key, array in found.items()} == SHAPES
        for key, array in found.items():
            assert array.tobytes() == first[key].tobytes(), f"{name}: {key}"


def test_weights_born_in_one_framework_are_not_those_of_the_other(travelled):
    assert not np.array_equal(travelled["torch"]["fc.weight"], travelled["keras"]["fc.weight"])


# ---------------------------------------------------------------- names without a partner
def test_weights_of_another_model_are_refused_with_both_sides(native, tmp_path):
    _, folder = native
    start = folder / "initial" / "checkpoints" / "step-00000000"
    options = ("--framework", "torch", "--run-dir", tmp_path / "run", "--init-from", start)
    finished = hvdtrain("train", PROJECT / "examples" / "digits.py", *options)
    layers = ("conv1", "conv2", "fc1", "fc2")
    model = [f"{layer}.{part}" for layer in layers for part in ("bias", "weight")]
    file = [f"{layer}.{part}" for layer in ("one", "two") for part in ("bias", "weight")]
    assert finished.stderr == (
        f"hvdtrain: error: import_state: model and file must hold the same tensors, got only in the model: {model}; "
        f"only in the file: {file}; of different shape (model, file): none. "
        "Use the model that wrote the file, or give the job a names mapping.\n"
    )
    assert finished.returncode == 2


def test_compare_of_different_models_is_refused_with_both_sides(native, normed):
    a, b = native[1] / "torch-1", normed[1] / "torch-1"
    finished = hvdtrain("compare", a, b)
    norm = [f"norm.{name}" for name in ("bias", "running_mean", "running_var", "weight")]
    assert finished.stderr == (
        f"hvdtrain: error: compare: runs must hold the same tensors, got only in {a}: none; only in {b}: {norm}. "
        "Give the layers the same names, or the job a names mapping.\n"
    )
    assert finished.returncode == 2


def test_compare_of_a_folder_without_a_run_is_refused(tmp_path):
    finished = hvdtrain("compare", tmp_path, tmp_path)
    assert finished.stderr == (
        f"hvdtrain: error: compare: {tmp_path} must be the folder of a finished run, got [Errno 2] No such file or "
        f"directory: '{tmp_path}/summary.json'.\n"
    )
    assert finished.returncode == 2
