from __future__ import annotations

import pytest

from hvdtrain.errors import ConfigError
from hvdtrain.timeline import require_timeline


def test_a_file_that_can_be_written_is_accepted_and_keeps_what_it_holds(tmp_path):
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("[]")
    for path in (new, old):
        require_timeline({"HOROVOD_TIMELINE": str(path)})
    assert (new.read_bytes(), old.read_bytes()) == (b"", b"[]")


@pytest.mark.parametrize("environ", [{}, {"HOROVOD_TIMELINE": ""}, {"HOROVOD_TIMELINE": "DYNAMIC"}])
def test_without_a_file_nothing_is_written(environ, tmp_path):
    require_timeline(environ)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("folder", "Is a directory"),
        ("nowhere/timeline.json", "No such file or directory"),
        ("file/timeline.json", "Not a directory"),
    ],
)
def test_what_cannot_be_written_is_refused_with_the_reason(name, reason, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        require_timeline({"HOROVOD_TIMELINE": str(tmp_path / name)})
    assert str(caught.value) == (
        f"start: HOROVOD_TIMELINE must name a file that can be written, got '{tmp_path / name}' ({reason}). "
        "Name a file, such as timeline.json, in a folder that exists."
    )
