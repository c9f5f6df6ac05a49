from __future__ import annotations

import hashlib
import json
import logging
import os
import resource
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hvdtrain.checkpoint import (
    checkpoint_name,
    commit,
    find_latest,
    list_checkpoints,
    load,
    load_named,
    read_manifest,
    remove,
    remove_unfinished,
)
from hvdtrain.errors import CheckpointError
from hvdtrain.portable import PortableState

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors")


def make_state(value=1.0):
    weights = {
        "fc.weight": np.arange(6, dtype=np.float32).reshape(2, 3) * value,
        "mask": np.array([True, False]),
        "step": np.array(7, dtype=np.int64),
    }
    return PortableState(weights, {"fc.weight/exp_avg": np.full((2, 3), value)}, {"head.weight": "fc.weight"})


def same_bits(found, expected):
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def edit_manifest(path, **changes):
    file = path / "manifest.json"
    values = {**json.loads(file.read_text()), **changes}
    values = {name: value for name, value in values.items() if value is not None and name != "digest"}
    file.write_text(json.dumps({**values, "digest": digest_of(values)}))


def digest_of(values):
    """Return what the manifest says of its other values, so that only what a test changes is wrong."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def names_in(folder):
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.mark.parametrize(
    ("step", "name"),
    [(0, "step-00000000"), (42, "step-00000042"), (123456789, "step-123456789")],
)
def test_checkpoint_name_holds_at_least_eight_digits(step, name):
    assert checkpoint_name(step) == name


# ---------------------------------------------------------------- written whole
def test_commit_and_load_return_the_same_bits(tmp_path):
    state = make_state()
    path = commit(tmp_path / "checkpoints", 42, state, {"global_step": 42})
    assert path == tmp_path / "checkpoints" / "step-00000042"
    assert names_in(path) == sorted(FILES)
    found = load(path)
    same_bits(found.state.weights, state.weights)
    same_bits(found.state.slots, state.slots)
    assert found.state.aliases == {"head.weight": "fc.weight"}
    assert found.path == path


def test_manifest_holds_format_values_aliases_and_digests(tmp_path):
    path = commit(tmp_path, 1, make_state(), {"global_step": 1, "config": {"seed": 3}})
    files = {
        name: {"sha256": hashlib.sha256((path / name).read_bytes()).hexdigest(), "bytes": (path / name).stat().st_size}
        for name in ("model.safetensors", "optimizer.safetensors")
    }
    expected = {"format": 1, "global_step": 1, "config": {"seed": 3}, "aliases": make_state().aliases, "files": files}
    assert read_manifest(path) == expected
    assert json.loads((path / "manifest.json").read_text()) == {**expected, "digest": digest_of(expected)}


def test_commit_writes_plain_safetensors(tmp_path):
    path = commit(tmp_path, 1, make_state(), {})
    assert load_file(path / "model.safetensors")["fc.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_commit_of_transposed_and_strided_arrays_keeps_their_values(tmp_path):
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = commit(tmp_path, 1, PortableState({"t": base.T, "s": base[:, ::2]}), {})
    found = load(path).state.weights
    assert found["t"].tolist() == base.T.tolist()
    assert found["s"].tolist() == [[0, 2], [4, 6], [8, 10]]


def test_commit_of_a_dtype_of_no_file_raises_and_leaves_nothing(tmp_path):
    with pytest.raises(CheckpointError, match="got object for 'w'"):
        commit(tmp_path, 1, PortableState({"w": np.array(["x"], dtype=object)}), {})
    assert names_in(tmp_path) == []


def test_commit_of_a_manifest_that_nobody_would_read_raises_and_leaves_nothing(tmp_path):
    with pytest.raises(CheckpointError, match=r"a manifest must stay below 4194304 bytes, got 5\d+\. "):
        commit(tmp_path, 1, make_state(), {"notes": ["x" * 5_000_000]})
    assert names_in(tmp_path) == []


def test_commit_tells_of_every_byte_of_the_tensor_files(tmp_path):
    told = []
    path = commit(tmp_path, 1, make_state(), {}, told.append)
    assert sum(told) == sum((path / name).stat().st_size for name in FILES[1:])


def test_commit_of_an_empty_state_loads(tmp_path):
    found = load(commit(tmp_path, 0, PortableState({}), {})).state
    assert (found.weights, found.slots, found.aliases) == ({}, {}, {})


def test_commit_replaces_the_checkpoint_of_the_same_step(tmp_path):
    commit(tmp_path, 3, make_state(1.0), {})
    commit(tmp_path, 3, make_state(2.0), {})
    assert names_in(tmp_path) == ["step-00000003"]
    assert load(tmp_path / "step-00000003").state.slots["fc.weight/exp_avg"].tolist() == [[2.0] * 3] * 2


def test_commit_clears_its_own_unfinished_folder(tmp_path):
    unfinished = tmp_path / f"step-00000003.tmp-{os.getpid()}"
    unfinished.mkdir()
    (unfinished / "torn").write_text("x")
    assert names_in(commit(tmp_path, 3, make_state(), {})) == sorted(FILES)
    assert names_in(tmp_path) == ["step-00000003"]


@contextmanager
def full_disk():
    """Let no file of this process grow above 1 kB, as a full disk would; pytest's own report must not meet it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_commit_that_finds_no_room_leaves_nothing_and_earlier_ones_intact(tmp_path):
    small = PortableState({"w": np.zeros(2, dtype=np.float32)})
    commit(tmp_path, 1, small, {})
    with pytest.raises(CheckpointError) as caught, full_disk():
        commit(tmp_path, 2, PortableState({"w": np.zeros(10_000, dtype=np.float32)}), {})
    message = str(caught.value)
    assert message.startswith("commit: a checkpoint must be written whole, got ")
    assert message.endswith(
        f" at {tmp_path / 'step-00000002'}. Earlier checkpoints are intact; make room or choose another --run-dir."
    )
    assert names_in(tmp_path) == ["step-00000001"]
    assert find_latest(tmp_path).path == tmp_path / "step-00000001"


def test_commit_that_fails_keeps_the_checkpoint_of_the_same_step(tmp_path):
    commit(tmp_path, 1, PortableState({"w": np.ones(2, dtype=np.float32)}), {})
    with pytest.raises(CheckpointError), full_disk():
        commit(tmp_path, 1, PortableState({"w": np.zeros(10_000, dtype=np.float32)}), {})
    assert load(tmp_path / "step-00000001").state.weights["w"].tolist() == [1.0, 1.0]


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MB of its own; needs the right to mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}; needs root")
    yield disk
    subprocess.run(["umount", disk], check=True)


BIG = PortableState({"w": np.zeros(500_000, dtype=np.float32)})


def test_commit_on_a_full_disk_raises_and_goes_on_once_there_is_room(small_disk):
    (small_disk / "ballast").write_bytes(bytes(700_000))
    commit(small_disk / "checkpoints", 1, make_state(), {})
    for step in (1, 2):
        with pytest.raises(CheckpointError) as caught:
            commit(small_disk / "checkpoints", step, BIG, {})
        assert str(caught.value) == (
            "commit: a checkpoint must be written whole, got OSError: [Errno 28] No space left on device at "
            f"{small_disk}/checkpoints/step-0000000{step}. Earlier checkpoints are intact; make room or choose another "
            "--run-dir."
        )
        assert names_in(small_disk / "checkpoints") == ["step-00000001"]
    same_bits(find_latest(small_disk / "checkpoints").state.weights, make_state().weights)
    (small_disk / "ballast").unlink()
    commit(small_disk / "checkpoints", 2, make_state(2.0), {})
    assert find_latest(small_disk / "checkpoints").path.name == "step-00000002"


def test_commit_on_a_disk_that_became_read_only_raises(small_disk):
    commit(small_disk / "checkpoints", 1, make_state(), {})
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for step in (1, 2):
        with pytest.raises(CheckpointError, match=r"got OSError: \[Errno 30\] Read-only file system: "):
            commit(small_disk / "checkpoints", step, make_state(), {})
    assert find_latest(small_disk / "checkpoints").path.name == "step-00000001"


@pytest.fixture
def unprivileged(tmp_path):
    """Act as a user whom permissions bind; the working directory stays reachable."""
    user = os.geteuid()
    tmp_path.chmod(0o755)
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


def test_commit_into_a_read_only_folder_raises(unprivileged):
    with pytest.raises(CheckpointError) as caught:
        commit(Path("checkpoints"), 1, make_state(), {})
    assert str(caught.value) == (
        "commit: a checkpoint must be written whole, got PermissionError: [Errno 13] Permission denied: "
        "'checkpoints' at checkpoints/step-00000001. "
        "Earlier checkpoints are intact; make room or choose another --run-dir."
    )


def test_commit_where_a_file_stands_in_the_way_raises(tmp_path):
    file = tmp_path / "checkpoints"
    file.write_text("")
    with pytest.raises(CheckpointError) as caught:
        commit(file, 1, make_state(), {})
    assert str(caught.value) == (
        f"commit: a checkpoint must be written whole, got FileExistsError: [Errno 17] File exists: '{file}' at "
        f"{file}/step-00000001. Earlier checkpoints are intact; make room or choose another --run-dir."
    )


# ---------------------------------------------------------------- read and verified
def test_list_checkpoints_sees_committed_ones_alone_oldest_first(tmp_path):
    for name in ("step-00000010", "step-00000002", "step-100000000", "step-00000011.tmp-7", "step-3", "other"):
        (tmp_path / name).mkdir()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000002", "step-00000010", "step-100000000"]


def test_list_checkpoints_of_no_folder_is_empty(tmp_path):
    assert list_checkpoints(tmp_path / "none") == []


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_load_of_a_torn_file_raises(tmp_path, name):
    path = commit(tmp_path, 1, make_state(), {})
    os.truncate(path / name, (path / name).stat().st_size // 2)
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert str(caught.value) == f"load: {path / name} does not match its digest in the manifest."


def test_load_finds_every_flipped_byte(tmp_path):
    path = commit(tmp_path, 1, make_state(), {})
    file = path / "optimizer.safetensors"
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match="does not match its digest"):
            load(path)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_load_without_a_file_raises(tmp_path, name):
    path = commit(tmp_path, 1, make_state(), {})
    (path / name).unlink()
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert str(caught.value) == (
        f"load: {path / name} cannot be read: FileNotFoundError: [Errno 2] No such file or directory: "
        f"'{path / name}'. Use an older checkpoint."
    )


def test_load_without_a_manifest_raises(tmp_path):
    path = commit(tmp_path, 1, make_state(), {})
    (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert str(caught.value) == (
        f"load: {path}/manifest.json cannot be read: [Errno 2] No such file or directory: "
        f"'{path}/manifest.json'. Use an older checkpoint."
    )


def test_load_of_a_torn_manifest_raises(tmp_path):
    path = commit(tmp_path, 1, make_state(), {})
    os.truncate(path / "manifest.json", 5)
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert str(caught.value).startswith(f"load: {path}/manifest.json cannot be read: ")


@pytest.mark.parametrize("number", [2, "1", None])
def test_load_of_another_format_raises(tmp_path, number):
    path = commit(tmp_path, 1, make_state(), {})
    edit_manifest(path, format=number)
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert str(caught.value) == (
        f"load: format must be 1, got {number!r} in {path}/manifest.json. Use a newer hvdtrain."
    )


def test_load_of_a_manifest_that_is_no_object_raises(tmp_path):
    path = commit(tmp_path, 1, make_state(), {})
    (path / "manifest.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="format must be 1, got None"):
        load(path)


@pytest.mark.parametrize("name", ["files", "aliases"])
def test_load_of_a_manifest_that_lacks_a_part_raises(tmp_path, name):
    path = commit(tmp_path, 1, make_state(), {})
    edit_manifest(path, **{name: None})
    with pytest.raises(CheckpointError):
        load(path)


def test_load_of_a_manifest_with_an_edited_digest_raises(tmp_path):
    path = commit(tmp_path, 1, make_state(), {})
    files = read_manifest(path)["files"]
    files["model.safetensors"]["sha256"] = "0" * 64
    edit_manifest(path, files=files)
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert str(caught.value) == f"load: {path}/model.safetensors does not match its digest in the manifest."


def test_load_of_a_manifest_with_an_edited_value_raises(tmp_path):
    path = commit(tmp_path, 1, make_state(), {"global_step": 1})
    file = path / "manifest.json"
    file.write_text(file.read_text().replace('"global_step": 1', '"global_step": 2'))
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert str(caught.value) == f"load: {file} does not match its own digest. Use an older checkpoint."


# ---------------------------------------------------------------- what is no longer wanted
def test_remove_unfinished_takes_torn_and_newer_ones_away(tmp_path):
    for step in (1, 2, 3, 100_000_000):
        commit(tmp_path, step, make_state(), {})
    for name in ("step-00000002.tmp-77", "step-00000009.tmp-old"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes").mkdir()
    remove_unfinished(tmp_path, newer_than=2)
    assert names_in(tmp_path) == ["notes", "step-00000001", "step-00000002"]


def test_checkpoint_that_was_being_replaced_is_found_and_gets_its_name_back(tmp_path):
    commit(tmp_path, 1, make_state(1.0), {})
    commit(tmp_path, 2, make_state(2.0), {})
    (tmp_path / "step-00000002").rename(tmp_path / "step-00000002.tmp-old")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000001", "step-00000002.tmp-old"]
    assert find_latest(tmp_path).state.slots["fc.weight/exp_avg"].tolist() == [[2.0] * 3] * 2
    remove_unfinished(tmp_path, newer_than=2)
    assert names_in(tmp_path) == ["step-00000001", "step-00000002"]


def test_checkpoint_that_was_replaced_is_not_found_again(tmp_path):
    commit(tmp_path, 2, make_state(2.0), {})
    shutil.copytree(tmp_path / "step-00000002", tmp_path / "step-00000002.tmp-old")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000002"]
    remove_unfinished(tmp_path, newer_than=2)
    assert names_in(tmp_path) == ["step-00000002"]


def test_commit_that_cannot_take_its_place_gives_the_name_back(tmp_path, monkeypatch):
    commit(tmp_path, 2, make_state(1.0), {})
    rename = Path.rename

    def fail_once(path, target):
        if ".tmp-" in path.name and not path.name.endswith(".tmp-old"):
            raise OSError("disk error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(CheckpointError, match="got OSError: disk error at "):
        commit(tmp_path, 2, make_state(2.0), {})
    assert names_in(tmp_path) == ["step-00000002"]
    assert load(tmp_path / "step-00000002").state.slots["fc.weight/exp_avg"].tolist() == [[1.0] * 3] * 2


def test_remove_takes_a_checkpoint_away(tmp_path):
    for step in (1, 2):
        commit(tmp_path, step, make_state(), {})
    remove(tmp_path / "step-00000001")
    remove(tmp_path / "step-00000007")
    assert names_in(tmp_path) == ["step-00000002"]


def test_remove_unfinished_without_a_folder_does_nothing(tmp_path):
    remove_unfinished(tmp_path / "none", newer_than=0)
    assert names_in(tmp_path) == []


# ---------------------------------------------------------------- the newest one
def test_find_latest_takes_the_highest_step(tmp_path):
    for step in (9, 100, 20):
        commit(tmp_path, step, make_state(), {"global_step": step})
    assert find_latest(tmp_path).manifest["global_step"] == 100


@pytest.mark.parametrize("damaged", FILES)
def test_find_latest_falls_back_to_the_newest_that_verifies(tmp_path, damaged):
    for step in (1, 2, 3):
        commit(tmp_path, step, make_state(), {"global_step": step})
    file = tmp_path / "step-00000003" / damaged
    os.truncate(file, file.stat().st_size // 2)
    assert find_latest(tmp_path).manifest["global_step"] == 2


def test_find_latest_passes_over_a_link(tmp_path):
    commit(tmp_path / "elsewhere", 9, make_state(), {})
    commit(tmp_path / "here", 1, make_state(), {"global_step": 1})
    (tmp_path / "here" / "step-00000009").symlink_to(tmp_path / "elsewhere" / "step-00000009")
    assert find_latest(tmp_path / "here").manifest["global_step"] == 1


def test_find_latest_tells_of_five_at_most(tmp_path):
    for step in range(9):
        (tmp_path / checkpoint_name(step)).mkdir()
    with pytest.raises(CheckpointError, match=r"Nor do 4 older ones\.$") as caught:
        find_latest(tmp_path)
    assert str(caught.value).count("cannot be read") == 5


def test_find_latest_never_sees_an_unfinished_one(tmp_path):
    commit(tmp_path, 1, make_state(), {"global_step": 1})
    shutil.copytree(tmp_path / "step-00000001", tmp_path / "step-00000002.tmp-77")
    assert find_latest(tmp_path).manifest["global_step"] == 1


def test_find_latest_of_nothing_is_none(tmp_path):
    assert find_latest(tmp_path) is None
    assert find_latest(tmp_path / "none") is None


def test_find_latest_with_none_that_verifies_raises_and_names_all(tmp_path):
    for step in (1, 2):
        (commit(tmp_path, step, make_state(), {}) / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError) as caught:
        find_latest(tmp_path)
    assert str(caught.value) == (
        f"find_latest: no checkpoint of {tmp_path} verifies. "
        f"load: {tmp_path}/step-00000002/model.safetensors does not match its digest in the manifest. "
        f"load: {tmp_path}/step-00000001/model.safetensors does not match its digest in the manifest."
    )


# ---------------------------------------------------------------- the checkpoint that a person means
def test_load_named_takes_the_newest_of_a_run_and_says_which(tmp_path, caplog):
    folder = tmp_path / "checkpoints"
    for step in (1, 2):
        commit(folder, step, make_state(float(step)), {})
    with caplog.at_level(logging.INFO, "hvdtrain"):
        assert load_named(tmp_path).path == load_named(folder).path == folder / "step-00000002"
        assert load_named(folder / "step-00000001").path == folder / "step-00000001"
    assert caplog.messages == [
        f"checkpoint: of {path} the newest is taken, step-00000002" for path in (tmp_path, folder)
    ]


def test_load_named_passes_over_damaged_ones_and_says_so(tmp_path, caplog):
    folder = tmp_path / "checkpoints"
    for step in (1, 2):
        commit(folder, step, make_state(), {})
    (folder / "step-00000002" / "model.safetensors").write_bytes(b"half")
    with caplog.at_level(logging.INFO, "hvdtrain"):
        assert load_named(tmp_path).path.name == "step-00000001"
    assert caplog.messages[-1].endswith("step-00000001 (step-00000002 passed over as damaged)")


def test_load_named_of_a_run_without_a_checkpoint_raises(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match=r"must be a checkpoint, got a run folder that holds none\. Name another"):
        load_named(tmp_path)
