from __future__ import annotations

import json
import math
import os
import re
import struct
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hvdtrain.errors import ConfigError
from hvdtrain.report.charts import Series, draw_curves, draw_ranks
from hvdtrain.report.page import write_report
from hvdtrain.report.reading import Curve, finite, read_run, read_runs
from tests.harness import run_command
from tests.unit.chromium import NAMES, Browser, find_chromium
from tests.unit.made_runs import row, write_run

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">'$x$&\x1b[2J"
VOID = {"meta", "link", "path", "use", "img", "br", "line", "rect"}


def make(folder, *, num_rows=12, framework="torch", num_ranks=2, text="", is_finished=True, **summary):
    """Write the folder of a run with everything that a report can show; ``text`` gets into every place for text."""
    folder.mkdir(parents=True)
    rows = []
    for step in range(1, num_rows + 1):
        place = {"epoch": 1, "global_step": step, "samples_seen": 64 * step, "time_s": 0.5 * step}
        rows.append(
            {
                **{"event": "train", **place, "loss": 2 / step, "grad_norm": None if step == 2 else 1.0 + step % 3},
                **{"noise_scale": 40.0 * step if step > 2 else None},
                **{"learning_rate": 0.01, "samples_per_s": 1000.0 + step, "memory_bytes": 2**30 + step},
            }
        )
        if step % 4 == 0:
            rows.append({"event": "eval", **place, "loss": 2.1 / step, f"accuracy{text}": 1 - 1 / step})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rows) + '{"event": "train", "lo')
    config = {"epochs": 1, "optimizer": "adamw", "learning_rate": 0.01, f"note{text}": text or None}
    (folder / "config.json").write_text(json.dumps(config))
    if is_finished:
        counts = {"once": 64, "more": 0, "never": 0}
        told = {
            **{"framework": framework + text, "size": num_ranks, "train": {"loss": 0.2}, "eval": {"loss": 0.3}},
            **{"ledger": {"train": counts, "eval": counts}, "samples_per_s": 1234.5, "time_s": 6.0},
            **{"split": {f"data{text}": 1.5, "optimizer": 0.5}, **summary},
            "ranks": [
                {"rank": rank, f"host{text}": text, "wait_ms": 3.0 + rank, "memory_bytes": (6 + rank) << 26}
                for rank in range(num_ranks)
            ],
        }
        (folder / "summary.json").write_text(json.dumps(told))
    return folder


def report_of(*folders):
    write_report(list(folders), Path("page.html"))
    return Path("page.html").read_text()


class Page(HTMLParser):
    """Checks that tags match, and takes names of tags and attributes, and all text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.text = set(), set(), [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self):
        return re.sub(r"\s+", " ", " ".join(self.text))


# ---------------------------------------------------------------- what the page says
def test_page_of_one_run_says_everything(tmp_path):
    page = Page(report_of(make(tmp_path / "digits")))
    for told in [
        *("digits", "torch · 2 ranks · 1 epoch", "finished", "every sample used once per epoch", "1.23k samples/s"),
        "memory of a rank 448 MiB",
        *("Loss", "Accuracy", "Gradient norm", "Learning rate", "Throughput", "Memory", "Where a step goes"),
        "Gradient noise scale samples, about the largest useful batch",
        *(
            "Wait by rank",
            "Memory by rank",
            "most: rank 1, 448 MiB; dashed: median 416 MiB",
            "1.5 ms, 75 %",
            "once 64, more 0, never 0",
            "optimizer adamw",
            "All 4 settings",
        ),
    ]:
        assert told in page.words


def test_page_of_one_run_shows_versions_checkpoints_and_notes(tmp_path):
    folder = write_run(tmp_path / "run", [row(1, 2.0), row(2, 1.0)], {"w": [1.0]}, notes=["dropout"])
    words = Page(report_of(folder)).words
    assert "step-00000002" in words
    assert "dropout" in words


def test_run_that_goes_on_is_shown_as_far_as_it_is(tmp_path):
    words = Page(report_of(make(tmp_path / "run", is_finished=False))).words
    assert "not finished" in words
    assert "training loss 0.1667 last row" in words


def test_ledger_that_is_not_exact_is_said(tmp_path):
    ledger = {"train": {"once": 60, "more": 2, "never": 4}, "eval": None}
    words = Page(report_of(make(tmp_path / "run", ledger=ledger))).words
    assert "samples were not used once" in words
    assert "every sample used once" not in words


def test_no_run_is_the_best_where_the_numbers_shown_are_equal(tmp_path):
    folders = [make(tmp_path / name, samples_per_s=value) for name, value in (("a", 1234.1), ("b", 1234.2))]
    assert "samples/s 1.23k 1.23k" in Page(report_of(*folders)).words


def test_several_runs_stand_side_by_side(tmp_path):
    folders = [
        make(tmp_path / "a"),
        make(tmp_path / "b", framework="tensorflow", num_ranks=4, time_s=3.0, samples_per_s=2e3),
    ]
    config = json.loads((folders[1] / "config.json").read_text())
    (folders[1] / "config.json").write_text(json.dumps({**config, "learning_rate": 0.5}))
    words = Page(report_of(*folders)).words
    assert "2 runs compared" in words
    assert "samples/s 1.23k ★ 2k" in words
    assert "ranks 2 4" in words
    assert "memory of a rank ★ 448 MiB 576 MiB" in words
    assert "learning_rate 0.01 0.5" in words
    assert "optimizer adamw" not in words  # it does not differ


def test_runs_of_one_name_get_numbers(tmp_path):
    runs = read_runs([make(tmp_path / "a" / "run"), make(tmp_path / "b" / "run"), make(tmp_path / "c")])
    assert [run.label for run in runs] == ["run (1)", "run (2)", "c"]


# ---------------------------------------------------------------- a stranger's run
def test_text_of_a_run_is_shown_and_never_becomes_part_of_the_page(tmp_path):
    plain, hostile = make(tmp_path / "a"), make(tmp_path / "b<b>$x$", text=HOSTILE)
    harmless = Page(report_of(plain)), Page(report_of(plain, make(tmp_path / "c")))
    for text, pattern in zip([report_of(hostile), report_of(plain, hostile)], harmless, strict=True):
        page = Page(text)
        assert page.tags <= pattern.tags
        assert page.attributes <= pattern.attributes
        assert "<script>document" in page.words
        assert "\x1b" not in text
        assert "default-src 'none'" in text


def test_page_asks_for_nothing_outside_itself(tmp_path):
    text = report_of(make(tmp_path / "a"), make(tmp_path / "b"))
    assert re.findall(r"""(?:src|href)=["'](?!#|data:)[^"']*""", text) == []
    assert "@import" not in text
    assert re.findall(r"url\((?!#)", text) == []


@pytest.mark.parametrize("name", ["config.json", "summary.json", "metrics.jsonl"])
@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"[1]", b"{", b"[" * 100_000, b'{"event": "train", "samples_seen": 1e999, "loss": 1}\n'],
    ids=["empty", "no text", "list", "cut", "deep", "infinite"],
)
def test_broken_files_are_passed_over(tmp_path, name, content):
    folder = make(tmp_path / "run")
    (folder / name).write_bytes(content)
    Page(report_of(folder))


@pytest.mark.parametrize(
    "summary",
    [
        {"train": 3, "ledger": [1], "split": "x", "size": "many", "samples_per_s": None, "time_s": True},
        {"split": {"a": -1, "b": math.inf, "c": None}, "size": 10**400, "time_s": 10**400},
        {"ledger": {"train": {"once": "x"}, "eval": 3}},
    ],
)
def test_summary_of_other_types_is_shown_as_far_as_it_goes(tmp_path, summary):
    Page(report_of(make(tmp_path / "run", **summary)))


def test_link_in_a_run_folder_is_not_followed(tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text('{"optimizer": "my secret"}')
    folder = make(tmp_path / "run")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(secret)
    assert "my secret" not in report_of(folder)


def test_more_metrics_than_anybody_reads_are_left_out(tmp_path):
    folder = make(tmp_path / "run")
    line = {"event": "eval", "samples_seen": 64, **{f"m{number}": 0.5 for number in range(1000)}}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert len(read_run(folder).curves["eval"]) == 24


@pytest.mark.parametrize("value", [True, "1", None, math.nan, math.inf, 10**400, 1e31, [1]])
def test_what_cannot_be_drawn_is_no_number(value):
    assert finite(value) is None


# ---------------------------------------------------------------- pictures
def curve_of(values):
    curve = Curve()
    for number, value in enumerate(values):
        curve.samples.append(float(number))
        curve.values.append(value)
    return curve


def test_picture_of_nothing_is_none():
    assert draw_curves("loss", [Series("a", curve_of([])), Series("b", curve_of([math.nan]))]) == ""


def test_long_curve_keeps_its_peaks_and_stays_small():
    values = [1.0] * 100_000
    values[5000] = 50.0
    picture = draw_curves("loss", [Series("a", curve_of(values))])
    assert "most 50." in picture
    assert len(picture) < 60_000


def test_lines_differ_by_more_than_colour():
    pictures = {
        re.sub(r"--series-\d", "", re.sub(r"#\w+", "", draw_curves("x", [Series("a", curve_of([1, 2]), style)])))
        for style in range(6)
    }
    assert len(pictures) == 6


def test_slowest_rank_is_named():
    def in_ms(value):
        return f"{value:g} ms"

    assert "median 2 ms, most 9 ms on rank 2" in draw_ranks("waiting", [1.0, 2.0, 9.0], in_ms)
    assert "most: rank 2, 9 ms; dashed: median 2 ms" in draw_ranks("waiting", [1.0, 2.0, 9.0], in_ms)
    assert len(draw_ranks("waiting", [1.0] * 4096, in_ms)) < 500_000


# ---------------------------------------------------------------- the command
def command(*words, **environment):
    env = {**environment, "PYTHONPATH": str(Path(__file__).parents[2])}
    return run_command([sys.executable, "-m", "hvdtrain", "report", *map(str, words)], timeout_s=50, env=env)


def test_command_writes_the_page_and_needs_no_framework(tmp_path):
    missing = tmp_path / "missing"
    for name in ("torch", "tensorflow", "keras", "horovod", "mpi4py"):
        (missing / name).mkdir(parents=True)
        (missing / name / "__init__.py").write_text("raise ImportError\n")
    environment = {"PYTHONPATH": os.pathsep.join([str(missing), str(Path(__file__).parents[2])])}
    words = [sys.executable, "-m", "hvdtrain", "report", str(make(tmp_path / "run")), "--out", "here.html"]
    finished = run_command(words, timeout_s=50, env=environment)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert re.fullmatch(r"report: here\.html \(1 run, \d+(\.\d)? KiB\)\n", finished.stdout)
    Page(Path("here.html").read_text())


def test_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError) as caught:
        write_report([tmp_path], Path("page.html"))
    assert str(caught.value).startswith(f"report: {tmp_path} must be the folder of a run, got ")
    assert not Path("page.html").exists()


def test_page_that_cannot_be_written_is_told(tmp_path):
    finished = command(make(tmp_path / "run"), "--out", tmp_path / "none" / "page.html")
    assert finished.returncode == 2
    assert finished.stderr.startswith(f"hvdtrain: error: report: {tmp_path}/none/page.html must be a file that can be ")


# ---------------------------------------------------------------- in a browser
def pixels(png):
    """Return the set of colours of an RGB or RGBA picture without interlacing, by filtering nothing but type 0 to 4."""
    data, place, width, depth = b"", 8, 0, 3
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        kind, body = png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        if kind == b"IHDR":
            width, depth = struct.unpack(">I", body[:4])[0], 4 if body[9] == 6 else 3
        elif kind == b"IDAT":
            data += body
        place += length + 12
    raw, stride = zlib.decompress(data), width * depth + 1
    return {raw[start : start + stride] for start in range(0, len(raw), stride)}


@pytest.mark.skipif(find_chromium() is None, reason=f"no browser here, looked for {', '.join(NAMES)}; install chromium")
def test_page_in_a_browser_has_no_error_and_fits(tmp_path):
    pages = {
        "one": [make(tmp_path / "digits", num_rows=400, num_ranks=16)],
        "two": [make(tmp_path / "a"), make(tmp_path / ("a-very-long-name-of-a-run-" * 3), is_finished=False)],
        "hostile": [make(tmp_path / "h<b>", text=HOSTILE)],
    }
    for name, folders in pages.items():
        write_report(folders, Path(f"{name}.html"))
    with Browser(tmp_path / "profile") as browser:
        for name in pages:
            for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light")):
                browser.show(Path(f"{name}.html"), width=width, scheme=scheme, is_phone=width < 500)
                assert browser.problems == [], (name, width)
                assert browser.evaluate("document.documentElement.scrollWidth") == width, (name, width)
                assert browser.evaluate("document.title") != "owned"
                assert browser.evaluate("document.scripts.length + document.images.length") == 0
                visible = "[...document.querySelectorAll('.charts svg')].filter(e => e.clientWidth > 0).length"
                assert browser.evaluate(visible) >= 6
        browser.show(Path("one.html"), width=1280)
        assert len(pixels(browser.screenshot())) > 300  # rows of pixels that differ: no blank page
        # What the checks above see when it is there:
        Path("bad.html").write_text("<p style='width: 2000px'>x<script>console.error('seen')</script>")
        browser.show(Path("bad.html"), width=390, is_phone=True)
        assert browser.problems != []
        assert browser.evaluate("document.documentElement.scrollWidth") > 390
        assert len(pixels(browser.screenshot())) < 300
