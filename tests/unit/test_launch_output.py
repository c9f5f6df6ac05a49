"""What goes on of a launcher's streams, cut anywhere, and what does not."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest

from hvdtrain.launch import output
from hvdtrain.launch.output import Heard, Relay, Sieve
from hvdtrain.launch.screen import write_all
from tests.unit import launcher_words as words

FAILED, END = "\x1ehvdtrain: failed 7\n", "\x1ehvdtrain: end 7\n"
RANKS = (
    "epoch 1\n\n"
    + "-" * 74
    + "\nname | value\n"
    + "-" * 74
    + "\n"
    + "=" * 83
    + "\n  0%|     |\r 50%|##   |\rdone\nmpirun: no\n"
)


class Case:
    def __init__(self):
        self.logged = bytearray()
        self.heard = Heard(self.logged.extend)
        self.sieve = Sieve(self.heard)

    def feed(self, *pieces):
        return b"".join(self.sieve.feed(piece.encode()) for piece in pieces).decode()

    def all(self, *pieces):
        return self.feed(*pieces) + self.sieve.finish().decode()

    @property
    def log(self):
        return self.logged.decode()


@pytest.fixture
def case():
    return Case()


def cut(text, seed):
    """Cut a text into pieces of random sizes."""
    generator, pieces = random.Random(seed), []  # noqa: S311  # the same cuts each time
    while text:
        size = generator.choice([1, 2, 7, 40, 400])
        pieces.append(text[:size])
        text = text[size:]
    return pieces


# ---------------------------------------------------------------- ranks
@pytest.mark.parametrize("seed", range(20))
def test_text_of_ranks_goes_on_unchanged_wherever_it_is_cut(case, seed):
    assert case.all(*cut(RANKS + "no newline", seed)) == RANKS + "no newline"
    assert (case.log, case.heard.find_ending(), case.heard.has_report) == ("", None, False)


def test_whole_lines_go_on_at_once_and_the_rest_when_it_is_whole(case):
    assert case.feed("a\nb\nha") == "a\nb\n"
    assert case.sieve.is_holding
    assert case.feed("lf\n") == "half\n"
    assert not case.sieve.is_holding


def test_text_without_a_newline_goes_on_when_it_has_waited(case):
    assert case.feed("a\nprompt> ") == "a\n"
    assert case.sieve.release() == b"prompt> "
    assert case.feed("answer\n") == "answer\n"


def test_text_without_a_newline_does_not_grow_without_end(case):
    assert len(case.feed("x" * (1 << 21))) == 1 << 21


def test_a_dashed_line_of_a_rank_goes_on_when_nothing_follows(case):
    assert case.feed(words.EDGE + "\n") == ""
    assert case.sieve.is_holding
    assert case.sieve.release().decode() == words.EDGE + "\n"


# ---------------------------------------------------------------- words of launchers
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", words.ALL)
def test_words_of_launchers_go_into_the_log_and_ranks_beside_them_on(case, name, seed):
    text = words.ALL[name]
    assert case.all(*cut("before\n" + text + "after\n", seed)) == "before\nafter\n"
    assert case.log == text


def test_words_behind_a_rank_s_unfinished_line_are_seen(case):
    assert case.all("loss 3" + words.OPENMPI4_KILLED) == "loss 3"
    assert case.log == words.OPENMPI4_KILLED


def test_a_block_that_is_cut_by_the_end_is_kept_in_the_log(case):
    part = words.OPENMPI4_ABORT[:150]
    assert case.all(part) == ""
    assert case.log == part


def test_news_of_a_launcher_goes_on(case):
    block = f"{words.EDGE}\nmpirun was unable to find the specified executable file, and therefore\n{words.EDGE}\n"
    assert case.all(block) == block


def test_a_connection_error_is_noise_only_where_it_says_that_the_peer_is_gone(case):
    gone = "[a][[1,1],0][btl_tcp_frag.c:241:mca_btl_tcp_frag_recv] readv failed: Connection reset by peer (104)\n"
    news = "[a][[1,1],0][btl_tcp_endpoint.c:7:connect] connect() to 10.0.0.2 failed: No route to host (113)\n"
    assert case.all(gone, news, gone) == news
    assert case.log == gone * 2


# ---------------------------------------------------------------- marks
@pytest.mark.parametrize("seed", range(20))
def test_marks_vanish_without_a_trace_wherever_they_stand(case, seed):
    text = "a\n 10%|#\x1ehvdtrain: step 5\n|\rb\x1ehvdtrain: step 6\n\nc\n"
    assert case.all(*cut(text, seed)) == "a\n 10%|#|\rb\nc\n"
    assert case.heard.step == 6


def test_half_a_mark_waits_and_is_told_when_it_never_ends(case):
    assert case.feed("a\x1ehvdtra") == ""
    assert case.sieve.release() == b"a"
    assert case.sieve.finish() == b"\x1ehvdtra"


@pytest.mark.parametrize("seed", range(20))
def test_a_report_is_kept_for_the_end_with_its_step(case, seed):
    report = "hvdtrain: this rank failed\nTraceback\n"
    text = f"a\n\x1ehvdtrain: step 3\nhalf{FAILED}{report}{END} line\n\x1ehvdtrain: step 9\n{words.OPENMPI4_ABORT}b\n"
    assert case.all(*cut(text, seed)) == "a\nhalf line\nb\n"
    assert case.heard.step == 7
    assert case.heard.has_report
    assert case.heard.take_report().decode() == report
    assert case.heard.take_report() == b""


def test_several_reports_fold_into_the_first(case):
    case.all(f"{FAILED}one\n{END}{FAILED}two\n{END}{FAILED}three\n{END}")
    told = "launch: 2 more reported a failure after this one, told in the log\none\n"
    assert (case.heard.take_report().decode(), case.log) == (told, "two\nthree\n")


def test_a_report_that_its_rank_could_not_end_is_told(case):
    assert case.all(f"{FAILED}hvdtrain: err") == ""
    assert case.heard.take_report() == b"hvdtrain: err"


# ---------------------------------------------------------------- streams
def relayed(feed, *, is_stderr=True, heard=None):
    """Return what a relay writes of what ``feed`` writes to a descriptor."""
    (source, inner), (outer, target) = os.pipe(), os.pipe()
    relay, got = Relay(source, target, heard or Heard(lambda _: None), is_stderr=is_stderr), []
    reader = threading.Thread(target=lambda: got.extend(iter(lambda: os.read(outer, 1 << 16), b"")))
    reader.start()
    relay.start()
    feed(inner, got)
    relay.finish(1.0)
    os.close(target)
    reader.join()
    for descriptor in (source, outer):
        os.close(descriptor)
    return b"".join(got), relay


def wait_until(condition):
    limit = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_relay_passes_text_on_while_the_stream_is_open():
    def feed(inner, got):
        os.write(inner, b"line\npart")
        wait_until(lambda: b"".join(got) == b"line\npart")
        os.write(inner, b"ial")
        os.close(inner)

    text, relay = relayed(feed)
    assert text == b"line\npartial"
    assert relay.ends_in_line


def test_relay_does_not_wait_for_a_stream_that_somebody_else_holds_open():
    def feed(inner, got):
        os.write(inner, b"line\n")
        held.append(inner)

    held = []
    began = time.monotonic()
    text, _ = relayed(feed)
    os.close(held[0])
    assert text == b"line\n"
    assert time.monotonic() - began < 9


def test_relay_tells_a_report_whose_job_does_not_end(monkeypatch):
    monkeypatch.setattr(output, "_REPORT_S", 0.1)

    def feed(inner, got):
        os.write(inner, f"{FAILED}report\n{END}".encode())
        wait_until(lambda: b"".join(got) == b"report\n")
        os.close(inner)

    heard = Heard(lambda _: None)
    assert relayed(feed, heard=heard)[0] == b"report\n"
    assert heard.take_report() == b""


def test_relay_drops_what_nobody_reads_and_reads_on():
    (source, inner), (outer, target) = os.pipe(), os.pipe()
    os.close(outer)
    relay = Relay(source, target, Heard(lambda _: None), is_stderr=False)
    relay.start()
    for _ in range(50):
        os.write(inner, b"x" * 4095 + b"\n")  # more than a pipe holds
    os.close(inner)
    relay.finish(5.0)
    os.close(source)
    os.close(target)


def test_write_all_waits_for_a_descriptor_that_does_not_block():
    outer, target = os.pipe()
    os.set_blocking(target, False)
    got = []
    reader = threading.Thread(target=lambda: got.extend(iter(lambda: os.read(outer, 4096), b"")))
    writer = threading.Thread(target=lambda: (write_all(target, b"x" * 500_000), os.close(target)))
    writer.start()
    time.sleep(0.1)
    reader.start()
    writer.join()
    reader.join()
    os.close(outer)
    assert len(b"".join(got)) == 500_000


def test_report_of_a_stop_names_the_signal_that_the_launcher_got(case):
    case.all("\x1ehvdtrain: failed 7\nhvdtrain: error: fit: stopped by SIGUSR1 after step 7.\n\x1ehvdtrain: end 7\n")
    case.heard.stopped_by = signal.SIGINT
    assert case.heard.take_report() == b"hvdtrain: error: fit: stopped by SIGINT after step 7.\n"


def test_report_of_a_stop_by_a_signal_to_the_ranks_stays_as_it_is(case):
    case.all("\x1ehvdtrain: failed 7\nhvdtrain: error: fit: stopped by SIGUSR1 after step 7.\n\x1ehvdtrain: end 7\n")
    assert case.heard.take_report() == b"hvdtrain: error: fit: stopped by SIGUSR1 after step 7.\n"


def test_line_to_show_goes_to_the_terminal_alone(case):
    shown = []
    case.heard.screen.show = shown.append
    assert case.all("before\n\x1ehvdtrain: show step 1\n", "after\n\x1ehvdtrain: sh", "ow \n") == "before\nafter\n"
    assert shown == [b"step 1", b""]
