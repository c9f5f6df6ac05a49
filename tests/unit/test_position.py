from __future__ import annotations

import threading

from hvdtrain.data import prefetch
from hvdtrain.position import Position, find_line


def test_entering_and_moving_are_moves():
    position = Position()
    position.enter("data")
    position.moved()
    assert (position.phase, position.moves) == ("data", 2)


def look_from_a_thread(phase):
    found = []
    thread = threading.Thread(target=lambda: found.append(find_line(phase)))
    thread.start()
    thread.join()
    return found[0]


def test_the_line_is_the_innermost_of_the_users_code_and_not_of_a_library():
    line = look_from_a_thread("callback")  # the main thread stands in threading.py, called from here
    assert line.text.startswith("test_position.py:")
    assert line.text.endswith(" in look_from_a_thread")
    assert line.is_users
    assert not line.is_waiting


def test_a_name_that_is_not_ascii_is_told_as_it_is_written():
    found = []
    names = {"thread": threading.Thread(target=lambda: found.append(find_line("callback")))}
    exec(compile("def Prüfung(): thread.start(); thread.join()\nPrüfung()", "/jobs/käse→.py", "exec"), names)  # noqa: S102
    assert found[0].text == "käse→.py:1 in Prüfung"


def test_while_data_are_awaited_the_line_is_the_readers():
    asked, answered = threading.Event(), threading.Event()

    def samples():
        asked.set()
        answered.wait(10)  # the reader stands here
        yield 1

    found = []

    def look():
        asked.wait(10)
        found.append(find_line("data"))
        answered.set()

    watcher = threading.Thread(target=look)
    steps = prefetch(samples(), 1)
    watcher.start()
    assert list(steps) == [1]
    watcher.join()
    assert found[0].text.startswith("test_position.py:")
