from __future__ import annotations

from hvdtrain.bench_picture import draw_bench
from tests.unit.test_bench import scale


def test_the_picture_is_a_png_of_its_size(tmp_path):
    draw_bench([scale(), scale(2, 16), scale(4, 32)], tmp_path / "bench.png")
    content = (tmp_path / "bench.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(content[16:20], "big") == 1100
