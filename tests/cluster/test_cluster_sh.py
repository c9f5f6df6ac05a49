"""docker/cluster.sh and the hosts that it starts."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest

from tests.cluster.hosts import IMAGE, PROJECT, left_of, wait_until
from tests.harness import run_command

HOSTS = ("head", "worker1", "worker2")
KEYS = r".*/\(ssh_host_.*\|.*ed25519.*\|id_rsa.*\|authorized_keys\)"
FIND_KEYS = ["find", "/", "-xdev", "-type", "f", "-regex", KEYS]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "--workers", "0"], "--workers must be a number of at least 1, got '0'"),
        (["up", "--workers"], "--workers must be a number of at least 1, got ''"),
        (["up", "--workers", "9"], "--workers must be at most 8, got 9"),
        (["up", "now"], "up does not know 'now'"),
        (["run", "--launcher", "srun"], "--launcher must be launch, horovodrun or mpirun, got 'srun'"),
        (["run", "-np", "two"], "-np must be a number of at least 1, got 'two'"),
        (["run", "--framework"], "--framework needs a value"),
        (["run", "--epochs", "3"], "run does not know '--epochs'. Options of 'hvdtrain train' come after --"),
        (["kill"], "kill takes the name of one host"),
        (["down", "--all"], "down takes no argument"),
        (["stop"], "there is no command 'stop'"),
    ],
)
def test_wrong_words_are_refused_with_a_cure(cluster, words, said):
    finished = cluster.script(*words, timeout_s=60)
    assert finished.returncode == 2, finished.output
    assert said in finished.stderr


def test_help_names_every_command(cluster):
    finished = cluster.script("--help", timeout_s=60)
    assert finished.returncode == 0
    assert all(f"docker/cluster.sh {name}" in finished.stdout for name in ("up", "run", "kill", "down"))


def test_interrupt_reaches_the_ranks_which_save_and_leave(cluster):
    job = ["--framework", "torch", "--", "--run-dir", "runs/interrupted", "--epochs", "500"]
    with cluster.start_script("run", *job) as launch:
        wait_until(lambda: cluster.rows("interrupted"), launch)
        # To the whole group, as a terminal does it.
        os.killpg(launch.process.pid, signal.SIGINT)
        finished = launch.finish(timeout_s=60)
    assert finished.returncode == 130, finished.output
    assert cluster.steps("interrupted") != []


def test_hosts_train_as_a_user_and_take_keys_alone(cluster):
    for host in HOSTS:
        assert cluster.run(host, "bash", "-c", "id -u; df -BM --output=size /dev/shm").stdout.split() == [
            "1000",
            "1M-blocks",
            "1024M",
        ]
    asked = ["-o", "PubkeyAuthentication=no", "-o", "PreferredAuthentications=password,keyboard-interactive"]
    finished = cluster.run("head", "ssh", *asked, "worker1", "true")
    assert finished.returncode == 255
    assert "Permission denied (publickey)" in finished.stderr


def test_image_holds_no_key(cluster):
    inside = run_command(["docker", "run", "--rm", IMAGE, *FIND_KEYS], timeout_s=120)
    assert inside.stdout == ""
    # The same search finds them where they are.
    found = cluster.run("head", *FIND_KEYS).stdout.split()
    assert {"/home/trainer/.ssh/id_ed25519", "/home/trainer/.ssh/host_ed25519"} <= {*found}


def test_change_of_the_package_rebuilds_its_own_layers_alone(cluster, tmp_path):
    for name in ("hvdtrain", "examples", "docker"):
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "README.md", ".dockerignore"):
        shutil.copy(PROJECT / name, tmp_path)
    changed = tmp_path / "hvdtrain/errors.py"
    changed.write_text(changed.read_text() + "# another line\n")
    other = f"{IMAGE}-changed"
    build = [*find_compose(), "-f", str(tmp_path / "docker/docker-compose.yml"), "build", "head"]
    try:
        finished = run_command(build, timeout_s=300, env={**cluster.env, "HVDTRAIN_IMAGE": other})
        assert finished.returncode == 0, finished.output[-4000:]
        before, after = layers(IMAGE), layers(other)
    finally:
        run_command(["docker", "rmi", other], timeout_s=60)
    kept = sum(a == b for a, b in zip(before, after, strict=True))
    # The copy of the package, and its installation.
    assert len(before) - kept == 2


def test_running_cluster_holds_what_down_must_remove(cluster):
    assert {line.split()[0] for line in left_of(cluster)} == {"ps", "network", "volume"}


def find_compose():
    has_plugin = run_command(["docker", "compose", "version"], timeout_s=60).returncode == 0
    return ["docker", "compose"] if has_plugin else ["docker-compose"]


def layers(image):
    words = ["docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}", image]
    return json.loads(run_command(words, timeout_s=60).stdout)
