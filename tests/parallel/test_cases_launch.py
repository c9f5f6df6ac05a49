"""Cases 52 and 53, as far as one machine can show them: lists of hosts, and hosts that do not answer."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.harness import run_command
from tests.parallel.commands import BIN, limited, require_success, without_bin
from tests.parallel.two_hosts import two_hosts

LAUNCH = [str(BIN / "hvdtrain"), "launch", "-np", "2"]
RULE = "hvdtrain: error: launch: "


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (
            "localhost",
            "each host of -H must read host:slots with slots of at least 1, got 'localhost'. "
            "Write for example -H localhost:2.",
        ),
        (
            "localhost:1",
            "-np must be at most the slots of all hosts, got -np 2 and 1 in 'localhost:1'. "
            "Give the hosts more slots, for example -H localhost:2.",
        ),
        (
            "localhost:1 localhost:1",
            "hosts of -H must be separated by commas, got 'localhost:1 localhost:1'. "
            "Write for example -H worker1:1,worker2:1.",
        ),
    ],
)
def test_case_52_wrong_hosts_are_one_line_with_an_example(hosts, message):
    finished = run_command([*LAUNCH, "-H", hosts, "--", "true"], **limited({}))
    assert (finished.returncode, finished.output) == (2, f"{RULE}{message}\n")


def test_case_52_blank_lines_and_comments_of_a_hostfile_are_ignored(tmp_path):
    (tmp_path / "hosts").write_text("# one machine\n\n   \nlocalhost slots=2  # all of it\n")
    finished = run_command([*LAUNCH, "--hostfile", str(tmp_path / "hosts"), "--", "echo", "up"], **limited({}))
    require_success(finished)
    assert finished.stdout == "up\nup\n"


def test_case_52_a_host_that_does_not_answer_is_named_within_the_time_limit_of_ssh(tmp_path):
    # On a wire of its own, where nobody has that address: nothing leaves this machine.
    with two_hosts(tmp_path) as hosts:
        name = f"{hosts.prefix}1"
        route = ["ip", "-n", name, "route", "add", "203.0.113.0/24", "dev", "wire1"]
        subprocess.run(route, check=True, timeout=20)
        words = ["ip", "netns", "exec", name, *LAUNCH, "-H", "203.0.113.1:2", "--", "true"]
        finished = run_command(words, **limited({"timeout_s": 40}))
    assert finished.returncode == 2
    first, *rest = finished.output.splitlines(keepends=True)
    assert first.startswith("launch: asks the hosts over ssh, then starts 2 ranks on 1 host: ")
    assert "".join(rest).startswith(
        f"{RULE}each host must answer ssh without a password, got no answer from '203.0.113.1' ("
    )
    assert "Make this succeed: ssh -o BatchMode=yes -o ConnectTimeout=10 203.0.113.1 true." in finished.stderr
    assert len(rest) == 1


def test_case_53_launched_by_full_path_all_ranks_use_that_interpreter():
    words = [*LAUNCH, "--", "python", "-c", "import sys; sys.stdout.write(sys.executable + chr(10))"]
    path = without_bin()
    assert str(BIN) not in path.split(os.pathsep)
    finished = run_command(words, **limited({"env": {"PATH": path}}))
    require_success(finished)
    assert finished.stdout == f"{BIN / 'python'}\n" * 2
