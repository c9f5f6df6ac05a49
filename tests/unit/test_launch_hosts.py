"""Host lists: what is read, and what is refused with which words."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hvdtrain.errors import ConfigError
from hvdtrain.launch.hosts import Host, join_hosts, parse_hostfile, parse_hosts


def test_parse_hosts_with_two_hosts_returns_both():
    assert parse_hosts("a:2, b-1.example:3") == (Host("a", 2), Host("b-1.example", 3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "localhost",
            "launch: each host of -H must read host:slots with slots of at least 1, got 'localhost'. "
            "Write for example -H localhost:2.",
        ),
        (
            "a:0,b:1,c:x,",
            "launch: each host of -H must read host:slots with slots of at least 1, got 'a:0', 'c:x', ''. "
            "Write for example -H localhost:2.",
        ),
        (
            "-oProxyCommand=x:1",
            "launch: each host of -H must read host:slots with slots of at least 1, got '-oProxyCommand=x:1'. "
            "Write for example -H localhost:2.",
        ),
        (
            "localhost:1 localhost:1",
            "launch: hosts of -H must be separated by commas, got 'localhost:1 localhost:1'. "
            "Write for example -H worker1:1,worker2:1.",
        ),
    ],
)
def test_parse_hosts_with_wrong_form_raises(text, message):
    with pytest.raises(ConfigError) as caught:
        parse_hosts(text)
    assert str(caught.value) == message
    assert caught.value.exit_code == 2


def test_parse_hostfile_ignores_blank_lines_and_comments():
    text = "# cluster\n\nworker1 slots=2\n  worker2:3  # the big one\nworker3 slots = 1\n"
    assert parse_hostfile(text, "hosts") == (Host("worker1", 2), Host("worker2", 3), Host("worker3", 1))


def test_parse_hostfile_with_wrong_lines_names_them_all():
    with pytest.raises(ConfigError) as caught:
        parse_hostfile("worker1\n\nworker2 slots=0\nworker3:1\n", "hosts")
    assert str(caught.value) == (
        "launch: each line of --hostfile 'hosts' must read host slots=N with N of at least 1, "
        "got 'worker1' in line 1, 'worker2 slots=0' in line 3. "
        "Write one host a line, for example localhost slots=2."
    )


def test_parse_hostfile_without_hosts_raises():
    with pytest.raises(ConfigError) as caught:
        parse_hostfile("# nothing\n\n", Path("hosts"))
    assert str(caught.value) == (
        "launch: --hostfile must name at least 1 host, got none in 'hosts'. "
        "Write one host a line, for example localhost slots=2."
    )


def test_join_hosts_is_read_back_by_parse_hosts():
    hosts = (Host("a", 2), Host("b-1.example", 3))
    assert join_hosts(hosts) == "a:2,b-1.example:3"
    assert parse_hosts(join_hosts(hosts)) == hosts


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", socket.gethostname(), socket.gethostname().split(".")[0]])
def test_names_of_this_machine_are_local(name):
    assert Host(name, 1).is_local


def test_another_machine_is_not_local():
    assert not Host("worker1.example", 1).is_local
