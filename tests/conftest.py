"""Options, hygiene and collection rules for all tests."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.harness.company import group_of, place_of, turn
from tests.harness.requirements import REQUIRE, require

TESTS = Path(__file__).parent
ADAPTERS = ("torch", "tensorflow")
#: Rings whose tests run in this process and must leave it as they found it.
CLEAN_RINGS = ("unit", "contract")
LIMIT_S = 60
SEED = "HVDTRAIN_TEST_SEED"
RANK_PLUGIN = "tests.harness.rank_plugin"
ORDER_SEED = pytest.StashKey[int]()
#: A folder that all processes of one test run share, where pytest-xdist makes several.
SHARED_FOLDER = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--adapter", choices=ADAPTERS, help="the framework that this process uses")


def pytest_configure(config: pytest.Config) -> None:
    told: dict[str, Any] = getattr(config, "workerinput", {})
    seed = told.get("order_seed") or os.environ.get(SEED) or random.SystemRandom().randrange(1, 10**6)
    config.stash[ORDER_SEED] = int(seed)
    if "shared_folder" in told:
        config.stash[SHARED_FOLDER] = Path(told["shared_folder"])
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell without job control lets its background jobs ignore SIGINT, and every child would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each process of pytest-xdist what all of them share: the order of tests and a folder."""
    stash = node.config.stash
    if SHARED_FOLDER not in stash:
        folder = tempfile.TemporaryDirectory(prefix="hvdtrain-tests-")
        node.config.add_cleanup(folder.cleanup)
        stash[SHARED_FOLDER] = Path(folder.name)
    node.workerinput |= {"order_seed": stash[ORDER_SEED], "shared_folder": str(stash[SHARED_FOLDER])}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give tests that share what is costly to make to one process of pytest-xdist, and the long ones first."""
    # Its own mark for groups, in 3.8, is written where pytest 9.2 does not look for it: every test was a group.
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            self.workqueue.move_to_end(min(self.workqueue, key=place_of), last=False)
            super()._assign_work_unit(node)

    return ByGroup(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files under ``ranked/`` to the ranks, which load the rank plugin."""
    inside = collection_path.is_relative_to(TESTS) and "ranked" in collection_path.relative_to(TESTS).parts
    return True if inside and not config.pluginmanager.has_plugin(RANK_PLUGIN) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle the clean rings, file by file, so that no test leans on the one before it."""
    shuffler = random.Random(config.stash[ORDER_SEED])  # noqa: S311 - an order of tests is no secret
    keys: dict[Path, float] = {}
    decorated = [
        (keys.setdefault(item.path, shuffler.random()), shuffler.random(), item)
        if _ring(item.path) in CLEAN_RINGS
        else (1.0, 1.0, item)
        for item in items
    ]
    items[:] = [item for *_, item in sorted(decorated, key=lambda entry: entry[:2])]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let a test that is marked ``alone`` run so, with all that it sets up."""
    folder = item.config.stash.get(SHARED_FOLDER, None)
    if folder is None:
        return (yield)
    with turn(folder, is_alone=item.get_closest_marker("alone") is not None):
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"{SEED}={config.stash[ORDER_SEED]} repeats this order of tests")


@pytest.fixture
def adapter(request: pytest.FixtureRequest) -> str:
    """The name of the framework that ``--adapter`` chose, usable here."""
    name = request.config.getoption("--adapter")
    if name is None:
        reason = f"needs --adapter with one of {', '.join(ADAPTERS)}"
        if os.environ.get(REQUIRE):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    require(name)
    return name


@pytest.fixture(scope="session")
def shared_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run share."""
    return request.config.stash.get(SHARED_FOLDER, None) or tmp_path_factory.mktemp("shared")


@pytest.fixture(autouse=True)
def _hygiene(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give a test of the clean rings a folder, seeds and a limit; fail it for what it leaves."""
    if _ring(request.path) not in CLEAN_RINGS:
        yield
        return
    folder, environment, threads = Path.cwd(), _environment(), set(threading.enumerate())
    os.chdir(request.getfixturevalue("tmp_path"))
    random.seed(0)
    np.random.seed(0)
    handler = signal.signal(signal.SIGALRM, _time_is_up)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        os.chdir(folder)
    left = _left_threads(threads)
    changed = _restore_environment(environment)
    assert not left, f"the test left these threads running: {left}"
    assert not changed, f"the test changed these environment variables: {changed}"


def _ring(path: Path) -> str | None:
    """Return the name of the folder under ``tests`` that a file lies in."""
    return path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else None


def _time_is_up(number: int, frame: object) -> None:
    pytest.fail(f"the test takes longer than {LIMIT_S} s")


def _environment() -> dict[str, str]:
    # pytest itself moves this one from phase to phase.
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _restore_environment(before: dict[str, str]) -> list[str]:
    """Undo what a test changed and return the names."""
    after = _environment()
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for name in changed:
        os.environ.pop(name, None)
        if name in before:
            os.environ[name] = before[name]
    return changed


def _left_threads(before: set[threading.Thread]) -> list[str]:
    """Return the names of new threads that keep the process alive two seconds after the test."""
    new = [thread for thread in set(threading.enumerate()) - before if not thread.daemon]
    for thread in new:
        thread.join(2.0)
    return sorted(thread.name for thread in new if thread.is_alive())
