from __future__ import annotations

import numpy as np
import pytest

from hvdtrain.errors import DataError
from hvdtrain.tokens import TokenWindows
from tests.unit.fresh_process import run_fresh


def test_every_token_is_predicted_once_from_the_one_before_it():
    windows = TokenWindows(np.arange(11, dtype=np.uint8), 4)
    pairs = [
        (int(a), int(b))
        for window in (windows[i] for i in range(len(windows)))
        for a, b, weight in zip(window["text"], window["next"], window["weight"], strict=True)
        if weight
    ]
    assert pairs == [(i, i + 1) for i in range(10)]


def test_all_windows_have_one_form():
    windows = TokenWindows(np.arange(7, dtype=np.uint16), 4)
    for window in windows.__getitems__([0, 1]):
        assert {name: (array.shape, array.dtype.name) for name, array in window.items()} == {
            "text": ((4,), "int64"),
            "next": ((4,), "int64"),
            "weight": ((4,), "float32"),
        }
    assert windows[1]["weight"].tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("index", [-1, 2])
def test_a_window_beyond_the_end_does_not_exist(index):
    with pytest.raises(IndexError):
        TokenWindows(np.arange(7), 4)[index]


def test_a_file_is_mapped_and_not_read(tmp_path):
    path = tmp_path / "tokens.bin"
    with path.open("wb") as stream:
        stream.truncate(1 << 36)  # 64 GiB of zeros that take no room
    windows = TokenWindows.from_file(path, 8)
    assert len(windows) == -(-((1 << 35) - 1) // 8)
    assert windows[len(windows) - 1]["weight"].sum() == 7


def test_windows_of_a_large_file_take_little_memory(tmp_path):
    path = tmp_path / "tokens.bin"
    with path.open("wb") as stream:
        stream.truncate(1 << 32)
    program = f"""
from hvdtrain.memory import peak_bytes
from hvdtrain.tokens import TokenWindows
windows = TokenWindows.from_file({str(path)!r}, 1024)
before = peak_bytes()
for index in range(0, len(windows), len(windows) // 512):
    windows[index]
print((peak_bytes() - before) >> 20)
"""
    printed, errors = run_fresh(program)
    assert errors == ""
    assert int(printed) < 128  # of 4 GiB; the system maps some pages beside each one that is read


@pytest.mark.parametrize(
    ("tokens", "length"), [(np.zeros(1, int), 4), (np.zeros((2, 2), int), 4), (np.zeros(9, int), 0)]
)
def test_what_is_no_row_of_tokens_is_refused(tokens, length):
    with pytest.raises(DataError, match="one row of at least 2 tokens"):
        TokenWindows(tokens, length)


@pytest.mark.parametrize("size", [None, 0, 3])
def test_a_file_of_another_form_is_refused(size, tmp_path):
    path = tmp_path / "tokens.bin"
    if size is not None:
        path.write_bytes(bytes(size))
    with pytest.raises(DataError, match="must be a file of uint16 tokens"):
        TokenWindows.from_file(path, 8)
