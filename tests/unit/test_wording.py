from __future__ import annotations

import math

import pytest

from hvdtrain.wording import counted, duration, rate, short, size, table


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.123456, "0.1235"),
        (12345.678, "1.235e+04"),
        (36954, "36,954"),
        (None, "n/a"),
        (True, "True"),
        ("text", "text"),
        (math.nan, "nan"),
    ],
)
def test_short(value, told):
    assert short(value) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [(0, "0"), (0.25, "0.25"), (242.6, "243"), (999.6, "1k"), (999_600, "1M"), (3.2e6, "3.2M"), (5e9, "5e+09")],
)
def test_rate(value, told):
    assert rate(value) == told
    assert len(told) <= 5


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-1, "0:00"),
        (59.6, "1:00"),
        (3599.7, "1:00:00"),
        (86399, "23:59:59"),
        (86400, "1d 00:00"),
        (math.inf, "unknown"),
    ],
)
def test_duration(seconds, told):
    assert duration(seconds) == told


@pytest.mark.parametrize(
    ("num_bytes", "told"),
    [(0, "0 B"), (1023, "1.02e+03 B"), (1024, "1 KiB"), (1 << 20, "1 MiB"), (3 << 40, "3 TiB")],
)
def test_size(num_bytes, told):
    assert size(num_bytes) == told


def test_counted():
    assert [counted(number, "pass") for number in (0, 1, 2)] == ["0 passes", "1 pass", "2 passes"]


def test_table_aligns_the_second_column():
    assert table([("a", "1"), ("long", "2")]) == ["  a     1", "  long  2"]
    assert table([]) == []
