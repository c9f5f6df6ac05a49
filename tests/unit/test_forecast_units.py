from __future__ import annotations

import pytest

from hvdtrain.errors import ConfigError
from hvdtrain.forecast.units import parse_bandwidth, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("3GB", 3e9), ("1.5GiB", 1.5 * 2**30), ("512 MiB", 2**29), ("80GB", 8e10), ("1TB", 1e12), ("7B", 7.0)],
)
def test_bytes_are_read(text, num_bytes):
    assert parse_bytes("--memory", text) == num_bytes


@pytest.mark.parametrize(
    ("text", "per_s"),
    [("25Gbit", 3.125e9), ("25Gbit/s", 3.125e9), ("100MB/s", 1e8), ("100MB", 1e8), ("8bit", 1.0), ("1Kibit", 128.0)],
)
def test_bandwidth_is_read(text, per_s):
    assert parse_bandwidth("--bandwidth", text) == per_s


@pytest.mark.parametrize(("text", "seconds"), [("20us", 20e-6), ("1ms", 1e-3), ("1.5 s", 1.5), ("300ns", 300e-9)])
def test_time_is_read(text, seconds):
    assert parse_seconds("--latency", text) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((parse_bytes, text) for text in ("80", "80gb", "80Gb", "80Gbit", "80GB/s", "-1GB", "0GB", "GB", "1e3GB", "")),
        *((parse_bandwidth, text) for text in ("25", "25Gb", "25gbit", "25Gbit/m", "25us", "0Gbit", "25G bit")),
        *((parse_seconds, text) for text in ("20", "20US", "20µs", "1h", "-1us", "0us", "1ms/s", "1,5ms")),
    ],
)
def test_other_units_are_refused_with_rule_value_and_cure(parse, text):
    with pytest.raises(ConfigError) as told:
        parse("--option", text)
    assert str(told.value).startswith("plan: --option must be a number above 0 with one of the units ")
    assert f"got {text!r}. Write it as " in str(told.value)
