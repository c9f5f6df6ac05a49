from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvdtrain.errors import ConfigError
from hvdtrain.parity import choose_folder, run_parity


def parity_of(job, folder, frameworks=("torch",), *, num_ranks=1, options=(), tell=lambda line: None):
    run_parity(job, folder, frameworks, num_ranks=num_ranks, rtol=1e-5, trace=1, options=options, tell=tell)


def test_run_parity_of_a_job_that_fails_tells_code_log_and_message(tmp_path):
    job = tmp_path / "job.py"
    job.write_text("import hvdtrain\nconfig = hvdtrain.TrainConfig(global_batch_size=4)\n")
    folder, told = tmp_path / "runs", []
    with pytest.raises(ConfigError) as caught:
        parity_of(job, folder, ["torch", "tensorflow"], num_ranks=2, tell=told.append)
    assert told == [f"parity: run 1 of 5: torch on 1 rank makes the initial weights, log in {folder}"]
    assert str(caught.value) == (
        f"parity: torch on 1 rank must end well, got exit code 2 ({folder / 'initial.log'}):\n"
        f"  hvdtrain: error: {job}: must define the function train_data(), got none. Define it in the job file."
    )


def test_run_parity_of_a_job_that_raises_holds_the_end_of_its_log(tmp_path):
    job = tmp_path / "job.py"
    job.write_text(
        "import hvdtrain\nconfig = hvdtrain.TrainConfig(global_batch_size=4)\n"
        "def train_data():\n    raise OSError('no such disk')\n"
        "def torch_model(): ...\ndef torch_loss(model, batch): ...\n"
    )
    with pytest.raises(ConfigError, match=r"got exit code 1 \(.*initial\.log\):\n(  .*\n)*  OSError: no such disk$"):
        parity_of(job, tmp_path)


def test_run_parity_hands_options_to_the_runs(tmp_path):
    job = tmp_path / "job.py"
    job.write_text("import hvdtrain\nconfig = hvdtrain.TrainConfig()\n" + "def train_data(): ...\n")
    options = ["--learning-rate", "-1"]
    with pytest.raises(ConfigError, match=r"TrainConfig: learning_rate must be at least 0\.0, got -1\.0\.$"):
        parity_of(job, tmp_path, options=options)
    assert os.listdir(tmp_path) != []


def test_a_second_comparison_of_one_job_gets_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert choose_folder(None, "job") == Path("runs/job-parity")
    for name in ("job-parity", "job-parity-2"):
        (Path("runs") / name / "initial").mkdir(parents=True)
    assert choose_folder(None, "job") == Path("runs/job-parity-3")


def test_a_given_folder_must_be_new(tmp_path):
    (tmp_path / "empty").mkdir()
    assert choose_folder(tmp_path / "empty", "job") == tmp_path / "empty"
    (tmp_path / "used" / "torch-1").mkdir(parents=True)
    with pytest.raises(ConfigError) as caught:
        choose_folder(tmp_path / "used", "job")
    assert str(caught.value) == (
        f"parity: --run-dir must be a new or empty folder, got {tmp_path}/used, which holds torch-1. Remove it, or "
        "name another one; without --run-dir a new one is made."
    )
