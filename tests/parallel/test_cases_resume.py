"""Cases of checkpoints and resume: in ranks through the library, in processes where it is about those."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tests.harness import require, run_command, run_ranks
from tests.parallel.commands import FRAMEWORKS, JOBS, limited, own_stderr, require_success, train
from tests.parallel.rules import require_whole

RANKED = "tests/parallel/ranked"
#: Some hundred fits; each retraces in TensorFlow.
TIMEOUT_S = 420


#: What else two ranks run, and what one runs: the weights of one process are worked out in NumPy for all cases.
FURTHER = {1: ("-k", "case_11 or case_18 or case_39"), 2: (f"{RANKED}/test_resume_cases_{{framework}}.py",)}


@pytest.mark.parametrize("num_ranks", FURTHER)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_resume_cases_have_their_values(framework, num_ranks):
    require(framework)
    further = [word.format(framework=framework) for word in FURTHER[num_ranks]]
    arguments = {"num_ranks": num_ranks, "timeout_s": TIMEOUT_S, "args": ("--adapter", framework, *further)}
    run_ranks(f"{RANKED}/test_resume_cases.py", **arguments)


# ---------------------------------------------------------------- 9, 20, 41, 51: what a finished run leaves


@pytest.fixture(scope="module", params=FRAMEWORKS)
def finished(request, tmp_path_factory):
    """Framework, options and folder of a run of five updates by Adam on two ranks; nobody may change it."""
    require(request.param)
    folder = tmp_path_factory.mktemp(request.param) / "run"
    settings = ("--optimizer", "adam", "--max-steps", "5")
    options = ("--framework", request.param, "--run-dir", str(folder), *settings)
    require_success(train("images.py", *options, num_ranks=2))
    require_whole(folder, [5])
    return request.param, options, folder


def last(folder: Path) -> Path:
    return folder / "checkpoints" / "step-00000005"


def files_of(folder: Path):
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def test_case_9_finished_job_has_nothing_to_do_and_leaves_its_files_alone(finished):
    _, options, folder = finished
    before = files_of(folder)
    again = train("images.py", *options, "--resume", num_ranks=2)
    require_success(again)
    assert own_stderr(again) == "resume: nothing to do, the run ended at step 5"
    assert again.stdout == ""
    assert files_of(folder) == before


def test_case_20_new_process_begins_with_the_slots_and_the_count_of_the_old_one(finished, tmp_path):
    framework, _, folder = finished
    shutil.copytree(folder, tmp_path / "run")
    told = tmp_path / "told.npz"
    words = [sys.executable, str(JOBS / "tells_state.py"), framework, str(tmp_path / "run"), str(told)]
    require_success(run_command(words, **limited({"env": {"OMP_NUM_THREADS": "1"}})))
    saved = {}
    for name in ("model", "optimizer"):
        saved |= safetensors.numpy.load_file(last(folder) / f"{name}.safetensors")
    with np.load(told) as held:
        assert set(held) == set(saved)
        assert [name for name in saved if held[name].tobytes() != saved[name].tobytes()] == []
    counts = {name: float(array) for name, array in saved.items() if name.endswith("/step")}
    assert len(counts) == 4
    assert set(counts.values()) == {5.0}
    for slot in ("exp_avg", "exp_avg_sq"):
        assert all(np.abs(array).max() > 0 for name, array in saved.items() if name.endswith(f"/{slot}"))


@pytest.fixture(scope="module")
def without_horovod(tmp_path_factory):
    """An environment in which neither Horovod nor MPI can be imported."""
    folder = tmp_path_factory.mktemp("broken")
    for name in ("horovod", "mpi4py"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise ImportError('no {name} here')\n")
    return {"PYTHONPATH": str(folder)}


def test_case_41_saved_model_loads_where_horovod_cannot_be_imported(finished, without_horovod):
    framework, _, folder = finished
    words = [sys.executable, str(JOBS / "loads_plainly.py"), framework, str(last(folder))]
    loaded = run_command(words, **limited({"env": without_horovod}))
    require_success(loaded)
    assert loaded.stdout == f"loaded {4 if framework == 'torch' else 2}\n"


def test_case_51_checkpoint_holds_safetensors_and_json_and_no_pickle(finished):
    _, _, folder = finished
    files = sorted(last(folder).iterdir())
    assert [file.name for file in files] == ["manifest.json", "model.safetensors", "optimizer.safetensors"]
    manifest, *tensors = files
    assert json.loads(manifest.read_text())["format"] == 1
    for file in tensors:
        content = file.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        held = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
        # The numbers end with the file, so there is no room for anything else.
        assert max(end for _, end in held) == len(content) - 8 - length
        assert not zipfile.is_zipfile(file)
        assert safetensors.numpy.load_file(file).keys() == header.keys() - {"__metadata__"}
