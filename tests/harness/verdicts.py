"""A check that all ranks pass or fail together."""

from __future__ import annotations

from typing import Any


def assert_on_all_ranks(communicator: Any, ok: object, message: str) -> None:
    """Fail on every rank when ``ok`` is false on any.

    A bare assert on a value that differs by rank would end one rank and leave the others waiting in
    the next collective. Every rank must call this.

    Args:
        communicator: Offers ``all_gather`` and ``topology``.
        ok: The verdict of this rank.
        message: What this rank says when its verdict is false.
    """
    answers = communicator.all_gather(None if ok else message)
    failed = [f"{answer} [rank {rank} of {len(answers)}]" for rank, answer in enumerate(answers) if answer is not None]
    if failed:
        raise AssertionError("\n".join(failed))
