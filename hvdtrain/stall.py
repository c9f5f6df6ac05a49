"""What a stall looks like, and whose it is: from where every rank stands to one report. No clock, no MPI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hvdtrain.position import Phase

#: Ranks that a report lists one by one; of larger jobs it lists these and counts the rest by phase.
_LISTED = 16

#: What may be done about each verdict.
_CURES = {
    "dead rank": "Look at that host; --resume continues from the last checkpoint.",
    "slow data": "Make the data set faster (data_workers, local files), or raise stall_timeout_s.",
    "rank-only work": "Do it on every rank, make it shorter, or raise stall_timeout_s.",
    "slow work": "Make it shorter, or raise stall_timeout_s.",
    "mismatched model": "Build the same model and call the same collectives on every rank.",
}


@dataclass(frozen=True)
class Standing:
    """Where one rank stands.

    Attributes:
        line: Such as ``job.py:12 in on_step_end``.
        is_waiting: Whether it is inside a collective operation.
        still_s: Seconds since it moved.
        silent_s: Seconds since it was heard of.
        has_left: Whether its run is over.
    """

    rank: int
    host: str
    step: int
    phase: Phase
    line: str
    is_waiting: bool
    still_s: float
    silent_s: float
    has_left: bool = False


@dataclass(frozen=True)
class Verdict:
    """Whose the stall is; ``rank`` is ``None`` where no single rank is behind."""

    kind: str
    rank: int | None
    text: str


def judge(standings: Sequence[Standing], silence_s: float) -> Verdict:
    """Return whom the others wait for, and why.

    Args:
        standings: One per rank, by rank.
        silence_s: A rank that was not heard of for so long is taken for dead or frozen.
    """
    silent = [s for s in standings if s.silent_s >= silence_s and not s.has_left]
    if silent:
        rank = _furthest_behind(silent)
        return Verdict("dead rank", rank.rank, f"rank {rank.rank} does not answer: it is frozen, or its host is gone")
    here = [s for s in standings if not s.has_left]
    busy = [s for s in here if not s.is_waiting]
    if busy:
        return _judge_busy(_furthest_behind(busy), is_alone=len(busy) < len(standings))
    if len(here) < len(standings):
        gone = next(s for s in standings if s.has_left)
        return Verdict("dead rank", gone.rank, f"rank {gone.rank} has left the run, and the others wait for it")
    alone = _odd_one(standings)
    if alone is not None:
        text = f"rank {alone.rank} alone is in a collective of its {alone.phase}, at {alone.line}"
        return Verdict("rank-only work", alone.rank, text)
    return Verdict("mismatched model", None, "every rank waits in a collective operation, and not for the same one")


def report(standings: Sequence[Standing], verdict: Verdict, stall_timeout_s: float) -> str:
    """Return the one message that a stall ends with: rule, where every rank stands, verdict and cure."""
    listed = list(standings[:_LISTED])
    if verdict.rank is not None and verdict.rank >= _LISTED:
        listed[-1] = standings[verdict.rank]
    lines = [_row(s) for s in listed]
    rest = Counter(s.phase for s in standings if s not in listed)
    if rest:
        lines.append(f"  {sum(rest.values())} more: " + ", ".join(f"{n} in {phase}" for phase, n in rest.most_common()))
    others = [s for s in standings if s.rank != verdict.rank and not s.has_left]
    waits_for = "" if verdict.rank is None or not others else f" The others wait for rank {verdict.rank}."
    return "\n".join(
        [
            f"watchdog: a rank must move within stall_timeout_s={stall_timeout_s:g} s, and none has:",
            *lines,
            f"Verdict: {verdict.kind}: {verdict.text}.{waits_for} {_CURES[verdict.kind]}",
        ]
    )


def _judge_busy(rank: Standing, *, is_alone: bool) -> Verdict:
    if rank.phase == "data":
        return Verdict("slow data", rank.rank, f"rank {rank.rank} waits for its samples at {rank.line}")
    if is_alone:
        return Verdict("rank-only work", rank.rank, f"rank {rank.rank} alone is in its {rank.phase} at {rank.line}")
    return Verdict("slow work", None, f"no rank comes out of its {rank.phase}, at {rank.line}")


def _furthest_behind(standings: Sequence[Standing]) -> Standing:
    return min(standings, key=lambda s: (s.step, -s.still_s))


def _odd_one(standings: Sequence[Standing]) -> Standing | None:
    """Return the rank whose phase differs from that of most; of two ranks, the one outside the step's reduction."""
    phases = Counter(s.phase for s in standings)
    if len(phases) < 2:
        return None
    usual = "reduce" if "reduce" in phases else phases.most_common(1)[0][0]
    return next(s for s in standings if s.phase != usual)


def _row(s: Standing) -> str:
    if s.has_left:
        return f"  rank {s.rank} on {s.host}: step {s.step}, has left the run"
    waits = ", waits for other ranks" if s.is_waiting else ""
    silent = f", silent for {s.silent_s:.0f} s" if s.silent_s > s.still_s / 2 else ""
    return f"  rank {s.rank} on {s.host}: step {s.step}, {s.phase} for {s.still_s:.0f} s at {s.line}{waits}{silent}"
