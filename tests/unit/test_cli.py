"""The program as a person meets it: help, completion, wrong words, tables, and Ctrl-C before anything runs."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from rich.table import Table

from hvdtrain.cli.compare import print_comparisons
from hvdtrain.cli.complete import folders, job_files
from hvdtrain.cli.main import app
from hvdtrain.cli.screen import say, show, without_padding
from hvdtrain.compare import compare_pair
from tests.harness import run_command, start_command
from tests.unit.made_runs import make_run, row

PROJECT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "hvdtrain"]
COMMANDS = sorted(info.name or info.callback.__name__ for info in app.registered_commands)

#: A screen.
LINES, COLUMNS = 50, 100


def hvdtrain(*words, **env):
    """Run the program in the project's folder."""
    environment = {"COLUMNS": str(COLUMNS), "PYTHONPATH": str(PROJECT), **env}
    return run_command([*PROGRAM, *words], timeout_s=60, env=environment, cwd=PROJECT)


# ---------------------------------------------------------------- help
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_screen_and_has_an_example(command):
    finished = hvdtrain(*filter(None, [command]), "--help")
    lines = finished.stdout.splitlines()
    assert (finished.returncode, finished.stderr) == (0, "")
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    example = [line for line in lines if line.startswith(" hvdtrain ") and len(line.split()) > 2]
    assert example, finished.stdout
    assert command in example[0]


def test_train_tells_every_setting_on_request_and_the_usual_ones_at_once():
    short, whole = hvdtrain("train", "--help").stdout, hvdtrain("train", "--help-all").stdout
    told = [set(re.findall(r"--[a-z][a-z-]+", text)) for text in (short, whole)]
    assert {"--epochs", "--optimizer", "--learning-rate", "--help-all"} <= told[0]
    assert "--epsilon" not in told[0]
    assert {"--epsilon", "--stall-timeout-s", "--keep-best"} <= told[1]
    assert told[0] < told[1]


# ---------------------------------------------------------------- completion
@pytest.fixture(scope="module")
def run_as_hvdtrain(tmp_path_factory):
    """A folder with a program named ``hvdtrain``, which is what the protocol goes by."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "hvdtrain"
    program.write_text(f"#!{sys.executable}\nfrom hvdtrain.cli.start import start\nstart()\n")
    program.chmod(0o755)
    return folder


def complete_with(folder, *words, kind="bash"):
    line = " ".join(["hvdtrain", *words])
    env = {"PYTHONPATH": str(PROJECT), "_HVDTRAIN_COMPLETE": f"complete_{kind}"}
    env |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words)), "_TYPER_COMPLETE_ARGS": line}
    finished = run_command([str(folder / "hvdtrain")], timeout_s=60, env=env, cwd=PROJECT)
    assert finished.returncode == 0, finished.output
    return finished.stdout


@pytest.mark.parametrize(
    ("words", "among"),
    [
        (["tr"], ["train"]),
        (["train", "--global-b"], ["--global-batch-size"]),
        (["train", "--epsi"], ["--epsilon"]),  # not in the short help, and completed all the same
        (["train", "--framework", "te"], ["tensorflow"]),
        (["parity", "--framework", "t"], ["tensorflow", "torch"]),
        (["train", "examples/dig"], ["examples/digits.py"]),
        (["train", "job.py", "--optimizer", "ad"], ["adam", "adamw"]),
        (["train", "--run-dir", "exam"], ["examples/"]),
        (["launch", "-np", "2", "--", "hvdtrain", "tra"], ["train"]),
        (["launch", "-np", "2", "--", "hvdtrain", "train", "examples/dig"], ["examples/digits.py"]),
        (["launch", "-np", "2", "--", "hvdtrain", "train", "x.py", "--warmup"], ["--warmup-epochs"]),
        (["launch", "-np", "2", "--", "hvdtrain", "train", "x.py", "--framework", "to"], ["torch"]),
    ],
    ids=" ".join,
)
def test_bash_completes(run_as_hvdtrain, words, among):
    assert complete_with(run_as_hvdtrain, *words).split() == among


def test_zsh_completes(run_as_hvdtrain):
    assert complete_with(run_as_hvdtrain, "train", "--framework", "te", kind="zsh") == (
        "_arguments '*: :((\"tensorflow\"))'\n"
    )


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_script_is_shown_for_the_shell(run_as_hvdtrain, shell):
    env = {"PYTHONPATH": str(PROJECT), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    finished = run_command([str(run_as_hvdtrain / "hvdtrain"), "--show-completion", shell], timeout_s=60, env=env)
    assert finished.returncode == 0, finished.output
    assert f"_HVDTRAIN_COMPLETE=complete_{shell}" in finished.stdout


def test_completion_is_installed_where_the_shell_reads_it(run_as_hvdtrain, tmp_path):
    env = {"PYTHONPATH": str(PROJECT), "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    finished = run_command([str(run_as_hvdtrain / "hvdtrain"), "--install-completion", "bash"], timeout_s=60, env=env)
    assert finished.returncode == 0, finished.output
    script = tmp_path / ".bash_completions" / "hvdtrain.sh"
    assert str(script) in (tmp_path / ".bashrc").read_text()
    # Bash itself asks: it sources the file, and calls the function that is registered there.
    line = f"source {script}; COMP_WORDS=(hvdtrain tr); COMP_CWORD=1; _hvdtrain_completion hvdtrain; echo $COMPREPLY"
    env["PATH"] = f"{run_as_hvdtrain}:{os.environ['PATH']}"
    asked = run_command(["bash", "--norc", "-c", line], timeout_s=60, env=env)
    assert asked.stdout == "train\n", asked.output


def test_paths_of_jobs_are_python_files_and_the_folders_on_the_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("job.py", "jot.txt", ".hidden.py", "jobs/deep.py", "__pycache__/job.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert job_files("") == ["job.py", "jobs/"]
    # A single folder goes on, for the shell would put a blank behind it.
    assert job_files("jobs") == ["jobs/", "jobs/deep.py"]
    assert job_files("jobs/d") == ["jobs/deep.py"]
    assert job_files("nowhere/x") == []
    assert folders("") == ["jobs/"]


# ---------------------------------------------------------------- wrong words
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "hvdtrain: No such command 'trian'. Did you mean 'train'? See 'hvdtrain --help'."),
        (["launch", "--hots", "x"], "hvdtrain launch: no such option '--hots'. Did you mean '--hosts'? "),
        (
            ["launch", "-np", "1", "--print", "slrm", "--", "x"],
            "got 'slrm'. Did you mean 'slurm'? See ",
        ),
        (["bench", "examples/digits.py", "--repeat", "2"], "hvdtrain bench: no such option '--repeat'. Did you mean "),
        (["parity", "examples/digits.py", "--epoch", "2"], "hvdtrain parity: no such option '--epoch'. Did you mean "),
        (["train", "examples/digit.py"], "which does not exist. Did you mean 'examples/digits.py'?"),
        (["train", "examples/digits"], "which does not exist. Did you mean 'examples/digits.py'?"),
        (["train", "examples"], "which is a folder. Job files in it: examples/digits.py"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_words_are_told_with_the_nearest_right_one(words, message):
    finished = hvdtrain(*words)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert message in finished.stderr
    assert finished.stderr.count("\n") == 1


# ---------------------------------------------------------------- faults of a job
def test_exception_of_a_job_is_told_from_its_own_line_on(tmp_path):
    job = tmp_path / "job.py"
    job.write_text(
        "import hvdtrain\nconfig = hvdtrain.TrainConfig(global_batch_size=4)\n"
        "def prepare_data():\n    raise OSError('no such disk')\n"
        "def train_data(): ...\ndef torch_model(): ...\ndef torch_loss(model, batch): ...\n"
    )
    finished = hvdtrain("train", str(job), "--framework", "torch", "--quiet", OMPI_MCA_mpi_yield_when_idle="1")
    assert finished.returncode == 1
    assert finished.stderr == (
        f'Traceback (most recent call last):\n  File "{job}", line 4, in prepare_data\n'
        "    raise OSError('no such disk')\nOSError: no such disk\n"
    )


# ---------------------------------------------------------------- tables
def test_tables_are_not_padded_and_fit_100_columns(capsys):
    table = Table("name", "found")
    table.add_row("a", "word " * 60)
    table.add_row("b", "")
    show(table, "text with a blank behind ")
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert max(map(len, lines)) == COLUMNS


def test_sentences_fold_and_keep_long_words_whole(capsys):
    say("a sentence of many words " * 8 + "x" * 120)
    lines = capsys.readouterr().out.splitlines()
    assert [len(line) <= COLUMNS for line in lines] == [True] * (len(lines) - 1) + [False]
    assert all(line.startswith("  ") for line in lines[1:])
    assert lines[-1] == "  " + "x" * 120


def test_compare_names_runs_of_one_kind_by_their_folders(tmp_path, capsys):
    runs = [make_run(tmp_path / name, [row(1, 2.0)], {"w": [value]}) for name, value in (("a", 1.0), ("b", 2.0))]
    print_comparisons([compare_pair(*runs, rtol=1e-5)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "a, b: first out of tolerance: step 1: tensor w differs by 1.00e+00 of its norm"
    assert sum("a, b" in line and "DIFFERENT" in line for line in lines) == 1


def test_colours_end_where_they_did():
    assert without_padding("\x1b[1mok  \x1b[0m  \n\x1b[2m   \x1b[0m\nb  c\n") == (
        "\x1b[1mok\x1b[0m\n\x1b[2m\x1b[0m\nb  c\n"
    )


# ---------------------------------------------------------------- Ctrl-C before anything runs
SLOW = """
import sys, time
print("up", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("where", ["import", "job"])
def test_interrupt_while_it_starts_says_one_line(tmp_path, where):
    """A module that takes long to import: one of the command line's own, or the job file."""
    words = ["train", str(tmp_path / "job.py")]
    if where == "import":
        (tmp_path / "pydantic.py").write_text(SLOW)
    else:
        (tmp_path / "job.py").write_text(SLOW)
    env = {"PYTHONPATH": f"{tmp_path}:{PROJECT}", "OMPI_MCA_mpi_yield_when_idle": "1"}
    with start_command([*PROGRAM, *words], env=env) as launch:
        limit = time.monotonic() + 30
        while "up" not in launch.stdout():
            assert time.monotonic() < limit, launch.stderr()
            time.sleep(0.05)
        launch.process.send_signal(signal.SIGINT)
        finished = launch.finish(timeout_s=20)
    assert (finished.returncode, finished.stderr) == (130, "hvdtrain: stopped by SIGINT\n")
