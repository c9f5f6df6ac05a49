from __future__ import annotations

import itertools
import struct

import pytest

from hvdtrain.compare import compare_runs
from hvdtrain.curves import draw_comparisons
from tests.unit.made_runs import make_run, row

W = {"w": [1.0]}
#: Ten by seven inches at 110 dots per inch.
SIZE = (1100, 770)


def png_size(path):
    """Return width and height from the header of a PNG (RFC 2083, 11.2.2)."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


@pytest.fixture
def draw(tmp_path):
    """A function of the losses of several runs: the picture of all neighbouring pairs."""

    def drawn(*losses):
        runs = [
            make_run(
                tmp_path / f"run-{number}", [row(step, loss) for step, loss in enumerate(series, 1)], W, size=number
            )
            for number, series in enumerate(losses, 1)
        ]
        pairs = [compare_runs(a, b, rtol=1e-5) for a, b in itertools.pairwise(runs)]
        draw_comparisons(pairs, tmp_path / "curves.png")
        return tmp_path / "curves.png"

    return drawn


def test_picture_of_one_pair_is_a_png_of_the_stated_size(draw):
    path = draw([2.0, 1.0, 0.5], [2.0, 1.001, 0.501])
    assert png_size(path) == SIZE
    assert 10_000 < path.stat().st_size < 500_000


def test_picture_shows_the_losses(draw, tmp_path):
    one = draw([2.0, 1.0, 0.5], [2.0, 1.0, 0.5]).read_bytes()
    for number in (1, 2):
        (tmp_path / f"run-{number}").rename(tmp_path / f"old-{number}")
    assert draw([2.0, 4.0, 0.5], [2.0, 4.0, 0.5]).read_bytes() != one


def test_picture_of_more_runs_than_line_styles_is_drawn(draw):
    assert png_size(draw(*[[2.0, 1.0]] * 6)) == SIZE


def test_picture_of_runs_whose_first_loss_is_zero_is_drawn(draw):
    assert png_size(draw([0.0, -1.0], [0.0, -1.0])) == SIZE


def test_picture_of_runs_with_a_row_without_loss_is_drawn(draw):
    assert png_size(draw([2.0, None, 1.0], [2.0, None, 1.0])) == SIZE
