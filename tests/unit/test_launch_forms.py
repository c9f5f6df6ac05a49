"""One host list in the words of every launcher."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from hvdtrain.cli.main import app
from hvdtrain.errors import ConfigError
from hvdtrain.launch import forms
from hvdtrain.launch.forms import LaunchForm, write_form
from hvdtrain.launch.mpirun import build_mpirun_command, make_request

PROJECT = Path(__file__).parents[2]
HOSTS = "worker1:2,worker2:2"
#: Words that a shell, YAML or JSON could take for something else.
TYPED = ("hvdtrain", "train", "a b.py", "--name", "$HOME", "'", "1", "yes", "a: b", "- x", "#", "é", "")
FORMS = {form.value: form for form in LaunchForm}


@pytest.fixture
def flavour(monkeypatch):
    """A function that says which mpirun is on PATH."""
    return lambda name: monkeypatch.setattr(forms, "find_flavour", lambda: name)


def write(form, typed=TYPED, hosts=HOSTS, num_ranks=4):
    return write_form(FORMS[form], make_request(num_ranks, typed, hosts=hosts, environ={}), typed, environ={})


def words_of(line):
    """Return the words of a command line without its leading assignments."""
    words = shlex.split(line)
    while "=" in words[0]:
        words.pop(0)
    return words


# Command lines


@pytest.mark.parametrize("name", ["openmpi4", "openmpi5", "mpich", "intel"])
def test_mpirun_line_is_the_command_that_launch_runs(flavour, name):
    flavour(name)
    request = make_request(4, TYPED, hosts=HOSTS, environ={})
    assert words_of(write("mpirun")) == build_mpirun_command(request, name)


def test_mpirun_line_sets_what_launch_adds(flavour):
    flavour("mpich")
    assert write("mpirun", ["prog", "a b", "$HOME"], "localhost:2", 2) == (
        "OMPI_MCA_mpi_yield_when_idle=1 GLIBC_TUNABLES=glibc.malloc.hugetlb=1 "
        "mpirun -np 2 -hosts localhost:2 -bind-to none -map-by slot "
        "-genvlist GLIBC_TUNABLES,OMPI_MCA_mpi_yield_when_idle prog 'a b' '$HOME'"
    )


@pytest.mark.parametrize(
    ("name", "binding"), [("openmpi4", []), ("openmpi5", ["--binding-args=--bind-to none --map-by slot"])]
)
def test_horovodrun_line_is_mended_for_openmpi5_alone(flavour, name, binding):
    flavour(name)
    program, *words = words_of(write("horovodrun"))
    assert Path(program).name == "horovodrun"
    assert words == ["--mpi", "-np", "4", "-H", HOSTS, *binding, sys.executable, "-m", *TYPED]


def test_horovodrun_line_for_mpich_is_refused(flavour):
    flavour("mpich")
    with pytest.raises(ConfigError) as caught:
        write("horovodrun")
    assert str(caught.value) == (
        "launch: --print horovodrun needs an mpirun that horovodrun knows, got one of MPICH. "
        "Use --print mpirun, or put Open MPI first on PATH."
    )


# Files


def test_files_need_no_mpirun_here(monkeypatch):
    monkeypatch.setenv("PATH", "/no-such-folder")
    assert all(write(form) for form in ("slurm", "compose", "mpijob"))
    with pytest.raises(ConfigError, match="mpirun must be on PATH"):
        write("mpirun")


def test_slurm_file_asks_for_the_hosts_and_keeps_every_word(tmp_path):
    text = write("slurm")
    asked = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert asked[1:4] == ["#SBATCH --nodes=2", "#SBATCH --nodelist=worker1,worker2", "#SBATCH --ntasks-per-node=2"]
    (line,) = [line for line in text.splitlines() if line.startswith("hvdtrain launch")]
    assert words_of(line) == ["hvdtrain", "launch", "-np", "4", "-H", "$hosts", "--", *TYPED, "&"]
    (tmp_path / "job").write_text(text)
    subprocess.run(["bash", "-n", str(tmp_path / "job")], check=True, timeout=20)


def test_slurm_file_without_hosts_leaves_the_choice_to_slurm():
    request = make_request(2, TYPED)
    text = write_form(LaunchForm.SLURM, request, TYPED)
    assert "--nodelist" not in text
    assert "--nodes=1\n#SBATCH --ntasks-per-node=2\n" in text


@pytest.mark.parametrize("form", ["slurm", "mpijob"])
def test_unequal_slots_are_refused_where_there_is_one_number_for_all(form):
    with pytest.raises(ConfigError) as caught:
        write(form, hosts="worker1:2,worker2:3")
    assert str(caught.value) == (
        f"launch: --print {form} needs hosts of equal slots, got 'worker1:2,worker2:3'. Give each host the same number."
    )


def test_compose_file_has_a_service_for_each_host_like_the_clusters():
    text = write("compose", hosts="worker1:2,worker2:3")
    ours = yaml.safe_load(text)
    theirs = yaml.safe_load((PROJECT / "docker/docker-compose.yml").read_text())
    assert list(ours["services"]) == ["head", "worker1", "worker2"]
    for name, service in ours["services"].items():
        own = {key: value for key, value in theirs["services"][name].items() if key != "build"}
        # Folders are relative to the file.
        assert {**service, "volumes": []} == {**own, "volumes": []}
        assert [volume.rpartition(":/")[2] for volume in service["volumes"]] == [
            volume.rpartition(":/")[2] for volume in own["volumes"]
        ]
    assert (ours["networks"], ours["volumes"]) == (theirs["networks"], theirs["volumes"])
    (line,) = [line for line in text.splitlines() if " exec head " in line]
    assert shlex.split(line.partition(" exec head ")[2]) == [
        *("hvdtrain", "launch", "-np", "4", "-H", "worker1:2,worker2:3", "--", *TYPED)
    ]


def test_compose_file_for_the_host_head_does_not_name_it_twice():
    assert list(yaml.safe_load(write("compose", hosts="head:2,worker1:2"))["services"]) == ["head", "worker1"]


def test_compose_file_for_this_machine_is_refused():
    with pytest.raises(ConfigError) as caught:
        write("compose", hosts="worker1:2,localhost:2")
    assert str(caught.value) == (
        "launch: --print compose needs the names of the containers, got this machine (localhost). "
        "Write for example -H worker1:2,worker2:2."
    )


def test_mpijob_file_keeps_every_word():
    job = yaml.safe_load(write("mpijob"))
    spec = job["spec"]
    replicas = spec["mpiReplicaSpecs"]
    assert (spec["slotsPerWorker"], replicas["Worker"]["replicas"], replicas["Launcher"]["replicas"]) == (2, 2, 1)
    words = replicas["Launcher"]["template"]["spec"]["containers"][0]["command"]
    launch = ["hvdtrain", "launch", "-np", "4", "--hostfile", "/etc/mpi/hostfile", "--", *TYPED]
    assert (words[0], words[2:]) == ("env", launch)
    # 'hvdtrain launch' leaves ssh alone where it finds this variable.
    name, _, value = words[1].partition("=")
    assert not make_request(1, ["true"], hosts="worker1:1", environ={name: value}).has_ssh


# The option


def test_print_starts_nothing(flavour, tmp_path):
    flavour("openmpi4")
    marker = tmp_path / "started"
    words = ["launch", "-np", "2", "--print", "mpirun", "--", "touch", str(marker)]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.output.endswith(f" touch {marker}\n")) == (0, True)
    assert not marker.exists()


def test_print_with_an_unknown_launcher_lists_them():
    result = CliRunner().invoke(app, ["launch", "-np", "2", "--print", "torque", "--", "true"])
    assert result.exit_code == 2
    for name in FORMS:
        assert name in result.output


def test_print_reads_the_hostfile(flavour, tmp_path):
    flavour("openmpi4")
    (tmp_path / "hosts").write_text("# two\nworker1 slots=2\n\nworker2 slots=2\n")
    words = ["launch", "-np", "4", "--hostfile", str(tmp_path / "hosts"), "--print", "mpirun", "--", "true"]
    assert f"-H {HOSTS} " in CliRunner().invoke(app, words).output
