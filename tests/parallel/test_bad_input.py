"""Bad input on two ranks: one message with rule, value and cure, once, exit code 2, within 15 s."""

from __future__ import annotations

import json

import pytest

from tests.harness import in_company, require
from tests.parallel.commands import FRAMEWORKS, JOBS, own_stderr, train

CURE = "Run 'HVDTRAIN_FRAMEWORKS={0} bash docker/install.sh', which installs and builds both."
MEAN = 'A mean hides how much each rank weighs: use reduction="none" and return what it gives.'


@pytest.fixture
def write_job(tmp_path):
    """A function that writes the toy job with more lines at its end."""

    def write(*lines):
        job = tmp_path / "job.py"
        job.write_text("\n".join([(JOBS / "toy.py").read_text(), *lines, ""]))
        return job

    return write


@pytest.fixture
def refuse(tmp_path):
    """A function that runs a job on two ranks and requires this message alone, and no run folder."""

    def refuse(job, message, *options, framework="torch", **arguments):
        run_dir = tmp_path / "run"
        chosen = () if framework is None else ("--framework", framework)
        finished = train(job, *chosen, "--run-dir", str(run_dir), *options, num_ranks=2, **arguments)
        assert own_stderr(finished) == f"hvdtrain: error: {message}"
        assert finished.output.count(message) == 1
        assert finished.stdout == ""
        assert finished.returncode == 2
        assert finished.seconds < in_company(15)
        assert not (run_dir / "metrics.jsonl").exists()

    return refuse


@pytest.fixture
def broken(tmp_path):
    """A function that returns the environment in which a package cannot be imported."""

    def broken(package):
        folder = tmp_path / "broken" / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise ImportError('libmissing.so: cannot open shared object file')\n")
        return {"PYTHONPATH": str(folder.parent)}

    return broken


# ---------------------------------------------------------------- the command line


def test_unknown_option_is_refused_with_the_nearest_one(refuse):
    message = (
        "hvdtrain train: no such option '--global-batch-siz'. Did you mean '--global-batch-size'? "
        "See 'hvdtrain train --help'."
    )
    refuse("toy.py", message, "--global-batch-siz", "4")


def test_option_outside_its_range_is_refused(refuse):
    refuse("toy.py", "TrainConfig: batch_size must be at least 1, got 0.", "--batch-size", "0")


def test_two_options_outside_their_range_are_refused_together(refuse):
    message = (
        "TrainConfig: 2 problems:\n"
        "  epochs must be at least 1, got 0.\n"
        "  optimizer must be one of 'sgd', 'adam', 'adamw' or 'lamb', got 'sdg'. Did you mean 'sgd'?"
    )
    refuse("toy.py", message, "--epochs", "0", "--optimizer", "sdg")


def test_option_that_is_no_number_is_refused_with_the_value(refuse):
    message = (
        "hvdtrain train: Invalid value for '--epochs': Input should be a valid integer, unable to parse string as an "
        "integer, got 'many'. See 'hvdtrain train --help'."
    )
    refuse("toy.py", message, "--epochs", "many")


# ---------------------------------------------------------------- the job file


def test_missing_job_file_is_refused_with_the_one_that_is_like_it(refuse, write_job):
    job = write_job()
    wrong = job.with_name("jobs.py")
    message = f"job: must be a Python file, got {str(wrong)!r}, which does not exist. Did you mean {str(job)!r}?"
    refuse(wrong, message)


def test_missing_job_file_in_an_empty_folder_is_refused_with_a_cure(refuse, tmp_path):
    message = f"job: must be a Python file, got {str(tmp_path / 'job.py')!r}, which does not exist. Check the path."
    refuse(tmp_path / "job.py", message)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_job_without_a_loss_is_refused_with_its_name(refuse, write_job, framework):
    job = write_job(f"del {framework}_loss")
    message = (
        f"{job}: --framework {framework} needs the functions {framework}_model and {framework}_loss, got no "
        f"{framework}_loss. Define it in the job file."
    )
    refuse(job, message, framework=framework)


def test_job_without_training_data_is_refused_with_a_cure(refuse, write_job):
    job = write_job("del train_data")
    message = f"{job}: must define the function train_data(), got none. Define it in the job file."
    refuse(job, message)


def test_job_without_config_is_refused(refuse, write_job):
    job = write_job("del config")
    refuse(job, f"{job}: must define config = hvdtrain.TrainConfig(...), got no config.")


def test_job_that_raises_is_refused_with_the_line(refuse, write_job):
    job = write_job("", "print_of = {}['missing']")
    line = job.read_text().splitlines().index("print_of = {}['missing']") + 1
    refuse(job, f"{job}: must run without an error, got KeyError: 'missing' at line {line}.")


def test_job_with_a_syntax_error_is_refused_with_the_line(refuse, write_job):
    job = write_job("def broken(:")
    line = job.read_text().splitlines().index("def broken(:") + 1
    message = f"{job}: must run without an error, got SyntaxError: invalid syntax (job.py, line {line}) at line {line}."
    refuse(job, message)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_scalar_loss_is_refused_with_the_cure(refuse, write_job, framework):
    require(framework)
    job = write_job(
        "def torch_loss(model, batch):",
        "    return model(batch['x']).mean()",
        "def tensorflow_loss(model, batch):",
        "    import keras",
        "    return keras.losses.MeanSquaredError()(batch['x'], model(batch['x']))",
    )
    refuse(job, f"loss: must return one value per element, got shape [] for 2 samples. {MEAN}", framework=framework)


def test_callback_of_the_job_that_raises_on_one_rank_ends_the_job(write_job, tmp_path):
    require("torch")
    job = write_job(
        "import hvdtrain",
        "class Fails(hvdtrain.Callback):",
        "    def on_step_end(self, trainer, report):",
        "        if trainer.topology.rank == 1 and report.global_step == 2:",
        "            raise LookupError('no such row')",
        "def callbacks():",
        "    return [Fails()]",
    )
    finished = train(job, "--framework", "torch", "--run-dir", str(tmp_path / "run"), num_ranks=2, timeout_s=60)
    assert finished.returncode == 1
    assert finished.stderr.count("raise LookupError('no such row')") == 1, finished.stderr
    assert finished.stderr.count("LookupError: no such row [rank 1 of 2]") == 1, finished.stderr
    assert finished.stderr.count("Traceback") == 1, finished.stderr


def test_callbacks_that_one_rank_cannot_make_end_the_job_before_training(write_job, tmp_path):
    require("torch")
    job = write_job(
        "def callbacks():",
        "    import os",
        "    return [] if os.environ['OMPI_COMM_WORLD_RANK'] == '0' else [len]",
    )
    finished = train(job, "--framework", "torch", "--run-dir", str(tmp_path / "run"), num_ranks=2, timeout_s=60)
    assert finished.returncode == 2
    assert finished.stderr.count("callbacks() must return a list of hvdtrain.Callback") == 1, finished.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_model_function_that_raises_on_one_rank_shows_its_line_and_rank(write_job, framework, tmp_path):
    require(framework)
    job = write_job(
        "def _fails():",
        "    import os",
        "    if os.environ['OMPI_COMM_WORLD_RANK'] == '1':",
        "        raise LookupError('no such width')",
        "    return _good()",
        f"_good, {framework}_model = {framework}_model, _fails",
    )
    options = ("--framework", framework, "--run-dir", str(tmp_path / "run"))
    finished = train(job, *options, num_ranks=2, timeout_s=in_company(40))
    assert finished.returncode == 1
    assert finished.stderr.count("raise LookupError('no such width')") == 1, finished.stderr
    assert finished.stderr.count("LookupError: no such width [rank 1 of 2]") == 1, finished.stderr
    assert finished.stderr.count("Traceback") == 1, finished.stderr


# ---------------------------------------------------------------- the framework


def test_unknown_framework_is_refused_with_the_nearest_one(refuse):
    message = "load_trainer: unknown framework 'pytorch', expected one of 'tensorflow', 'torch'. Did you mean 'torch'?"
    refuse("toy.py", message, framework="pytorch")


def test_job_for_two_frameworks_without_a_choice_is_refused(refuse):
    message = f"{JOBS / 'toy.py'}: serves tensorflow and torch. Choose one with --framework."
    refuse("toy.py", message, framework=None)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("package", ["framework", "horovod"])
def test_framework_that_cannot_be_imported_is_refused_with_the_remedy(refuse, broken, framework, package):
    env = broken(framework if package == "framework" else "horovod")
    message = (
        f"load_trainer: '{framework}' needs {framework} and horovod built for it, got ImportError: "
        f"libmissing.so: cannot open shared object file. {CURE.format(framework)}"
    )
    refuse("toy.py", message, framework=framework, env=env)


# ---------------------------------------------------------------- the plan


def test_contradicting_batch_numbers_are_refused_with_the_arithmetic(refuse):
    require("torch")
    message = (
        "plan: batch_size x backward_passes_per_step x ranks must reach global_batch_size, got 2 x 3 x 2 = 12 for 64. "
        "Leave one of the three out, and it follows from the others."
    )
    options = ("--global-batch-size", "64", "--batch-size", "2", "--backward-passes-per-step", "3")
    refuse("toy.py", message, *options)


@pytest.mark.parametrize("name", ["train_data", "eval_data"])
def test_no_samples_are_refused(refuse, write_job, name):
    job = write_job(f"def {name}():", "    return []")
    refuse(job, f"plan: {name} must hold at least 1 sample, got 0. Check the path or the filter that made it.")


def test_used_run_folder_is_refused_and_left_as_it_is(tmp_path):
    require("torch")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").write_text(json.dumps({"event": "train"}) + "\n")
    finished = train("toy.py", "--framework", "torch", "--run-dir", str(run_dir), num_ranks=2)
    assert own_stderr(finished) == (
        f"hvdtrain: error: run folder: {run_dir} must be new, got one that holds metrics.jsonl. "
        "Continue it with --resume, or choose another --run-dir."
    )
    assert finished.returncode == 2
    assert finished.seconds < in_company(15)
    assert sorted(path.name for path in run_dir.iterdir() if path.name != ".lock") == ["metrics.jsonl"]
    assert (run_dir / "metrics.jsonl").read_text() == '{"event": "train"}\n'
