from __future__ import annotations

import os

import pytest

from hvdtrain.errors import ConfigError
from hvdtrain.parity import run_parity


def test_run_parity_of_a_job_that_fails_tells_code_log_and_message(tmp_path):
    job = tmp_path / "job.py"
    job.write_text("import hvdtrain\nconfig = hvdtrain.TrainConfig(global_batch_size=4)\n")
    folder = tmp_path / "runs"
    with pytest.raises(ConfigError) as caught:
        run_parity(job, num_ranks=2, folder=folder, frameworks=["torch", "tensorflow"], rtol=1e-5, trace=1, options=[])
    assert str(caught.value) == (
        f"parity: torch on 1 ranks must end well, got exit code 2 ({folder / 'initial.log'}):\n"
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
        run_parity(job, num_ranks=1, folder=tmp_path, frameworks=["torch"], rtol=1e-5, trace=1, options=[])


def test_run_parity_hands_options_to_the_runs(tmp_path):
    job = tmp_path / "job.py"
    job.write_text("import hvdtrain\nconfig = hvdtrain.TrainConfig()\n" + "def train_data(): ...\n")
    options = ["--learning-rate", "-1"]
    with pytest.raises(ConfigError, match=r"TrainConfig: learning_rate must be at least 0\.0, got -1\.0\.$"):
        run_parity(job, num_ranks=1, folder=tmp_path, frameworks=["torch"], rtol=1e-5, trace=1, options=options)
    assert os.listdir(tmp_path) != []
