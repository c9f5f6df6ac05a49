from __future__ import annotations

import os

import pytest

from hvdtrain.plain_files import open_plain, printable, read_json, require_plain


def test_regular_file_is_opened(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"text")
    require_plain(file)
    with open_plain(file) as stream:
        assert stream.read() == b"text"


def test_nothing_is_told_as_the_system_tells_it(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_plain(tmp_path / "none")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: path.symlink_to("file"), "a link, not a file"),
        (lambda path: path.symlink_to("none"), "a link, not a file"),
        (lambda path: path.mkdir(), "not a regular file"),
        (os.mkfifo, "not a regular file"),
    ],
)
def test_anything_else_is_refused_at_once(tmp_path, make, kind):
    (tmp_path / "file").write_text("{}")
    make(tmp_path / "other")
    for act in (require_plain, open_plain, lambda path: read_json(path, max_bytes=10)):
        with pytest.raises(OSError, match=f"other is {kind}"):
            act(tmp_path / "other")


def test_read_json_returns_what_it_holds(tmp_path):
    file = tmp_path / "file"
    file.write_text('{"a": [1, null]}')
    assert read_json(file, max_bytes=16) == {"a": [1, None]}


@pytest.mark.parametrize(
    ("content", "message"),
    [('"1234567"', "more than 8 bytes"), ("[1", "Expecting"), ("\xff", "decode"), ("", "Expecting value")],
)
def test_read_json_refuses_what_is_too_long_or_no_json(tmp_path, content, message):
    file = tmp_path / "file"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        read_json(file, max_bytes=8)


def test_read_json_refuses_what_is_nested_too_deep(tmp_path):
    file = tmp_path / "file"
    file.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deep"):
        read_json(file, max_bytes=1 << 20)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fc.weight", "fc.weight"),
        ("a\x1b[2J\n\u202e\ud800b", "a?[2J???b"),
        ("x" * 20, "x" * 20),
        ("x" * 21, "x" * 20 + "..."),
        ("ü", "ü"),
        (1, "1"),
    ],
)
def test_printable_moves_no_cursor_and_is_short(text, shown):
    assert printable(text, limit=20) == shown
