"""The table of cases names tests that exist, leaves no test of a case out, and accounts for every number."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.cases import CASES, NUM_CASES, PENDING

TESTS = Path(__file__).parents[1]
_NAME = re.compile(r"test_case_(\d+)_\w+")


def functions_in(text: str) -> set[str]:
    """Return the names of the test functions in the text of a module, which is read and not imported."""
    return {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def nowhere(cases: Mapping[int, Sequence[str]]) -> list[str]:
    """Return what the table names and no file holds."""
    wrong = []
    for test in (test for tests in cases.values() for test in tests):
        file, _, name = test.partition("::")
        path = TESTS / file
        if not path.is_file() or name not in functions_in(path.read_text()):
            wrong.append(test)
    return wrong


def number_of(test: str) -> int | None:
    """Return the number of the case in a test's name, ``None`` where there is none."""
    match = _NAME.fullmatch(test.partition("::")[2])
    return match and int(match[1])


def left_out(cases: Mapping[int, Sequence[str]], tests: Sequence[str]) -> list[str]:
    """Return the tests with a case's number in their name that do not stand under this number."""
    return [test for test in tests if (number := number_of(test)) and test not in cases.get(number, ())]


def find_tests() -> list[str]:
    """Return every test whose name holds the number of a case, as ``file::test``."""
    found = [
        f"{path.relative_to(TESTS).as_posix()}::{name}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for name in sorted(functions_in(path.read_text()))
    ]
    return [test for test in found if number_of(test)]


def test_every_test_in_the_table_exists():
    assert nowhere(CASES) == []


def test_every_test_of_a_case_stands_in_the_table():
    tests = find_tests()
    assert len(tests) > 90
    assert left_out(CASES, tests) == []


def test_every_case_has_a_test_or_is_pending():
    missing = sorted(set(range(1, NUM_CASES + 1)) - CASES.keys() - PENDING.keys())
    print(f"without a test: {missing}; pending: {PENDING}")
    assert missing == []
    assert CASES.keys() | PENDING.keys() == set(range(1, NUM_CASES + 1))
    assert all(CASES.values())


def test_no_pending_case_has_a_test():
    tested = set(map(number_of, find_tests())) | CASES.keys()
    assert {number: issue for number, issue in PENDING.items() if number in tested} == {}


# ---------------------------------------------------------------- what the checks would see


@pytest.mark.parametrize("test", ["unit/test_cases_map.py::test_nothing", "unit/nowhere.py::test_case_1_x", "unit::"])
def test_test_that_does_not_exist_is_seen(test):
    assert nowhere({1: (test,)}) == [test]


def test_test_that_the_table_leaves_out_is_seen():
    one, two = "a.py::test_case_1_x", "b.py::test_case_2_x"
    assert left_out({1: (one,), 2: (two,)}, [one, two, "a.py::test_other"]) == []
    assert left_out({1: (one,)}, [one, two]) == [two]
    assert left_out({2: (one,)}, [one]) == [one]
