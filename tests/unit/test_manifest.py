from __future__ import annotations

import pytest

from hvdtrain.manifest import FILES, find_fault, find_resume_fault

SOUND = {
    "format": 1,
    "framework": "torch",
    "versions": {"python": "3.11", "horovod": None},
    "size": 2,
    "notes": ["dropout"],
    "counters": {"epoch": 2, "step_in_epoch": 0, "global_step": 6, "samples_seen": 20},
    "plan": {"sizes": {"global_batch_size": 4}, "total_samples": None},
    "data": {"ledger_digest": [10, 1 << 63]},
    **{name: {} for name in ("patience", "recorder", "ledgers", "config", "aliases")},
    "eval_row": {"global_step": 6, "loss": 1.0},
    "files": {name: {"sha256": "0a" * 32, "bytes": 8} for name in FILES},
    "of a newer version": 1,
}


def test_manifest_of_a_run_has_no_fault():
    assert find_fault(SOUND) is None
    assert find_fault({**SOUND, "eval_row": None}) is None


def test_manifest_that_lacks_parts_has_no_fault():
    assert find_fault({"aliases": {}, "files": SOUND["files"]}) is None


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("counters", [], "counters must be of type dict"),
        ("notes", "x", "notes must be of type list"),
        ("began_from", 1, "began_from must be of type str"),
        ("files", {}, f"files must hold a sha256 and the bytes of {' and '.join(FILES)}, and of nothing else"),
        (
            "counters",
            {"global_step": True},
            "counters must be whole numbers named epoch, global_step, samples_seen, step_in_epoch",
        ),
        ("aliases", {"a": 1}, "aliases must map names to text"),
        ("notes", [1], "notes must be text"),
        ("size", 1.0, "size must be a whole number"),
        ("eval_row", {"global_step": -1}, "eval_row.global_step must be a whole number"),
        ("plan", {"total_samples": float("inf")}, "plan.total_samples must be a whole number"),
        ("plan", {"sizes": {"global_batch_size": "4"}}, "plan.sizes.global_batch_size must be a whole number"),
        ("plan", {"sizes": 4}, "plan.sizes.global_batch_size must be a whole number"),
    ],
)
def test_fault_names_the_rule(name, value, fault):
    assert find_fault({**SOUND, name: value}) == fault


RUN = {
    **SOUND,
    "data": {"kind": "indexed", "ledger_digest": [10, (1 << 64) - 1, 0]},
    "patience": {"factor": 0.5, "best": None, "since_best": 0, "since_drop": 1},
    "recorder": {"window": [[0.0, 0]], "epoch": [[1.5, 4.0]], "clock": {"time_s": 1.5, "steady_samples": 8}},
    "ledgers": {"train": None, "eval": {"once": 4}},
}


@pytest.mark.parametrize("data", [RUN["data"], {"kind": "stream", "num_shards": 2, "consumed": [0, 7]}])
@pytest.mark.parametrize("row", [None, {"global_step": 3}])
def test_run_that_can_be_continued_has_no_fault(data, row):
    assert find_resume_fault({**RUN, "data": data, "eval_row": row}) is None


def test_run_with_a_noise_scale_can_be_continued():
    assert find_resume_fault({**RUN, "recorder": {**RUN["recorder"], "noise_scale": [0.5, -1.0]}}) is None


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("counters", {"epoch": 1}, "counters must hold epoch, global_step, samples_seen, step_in_epoch"),
        ("size", 0, "size must be at least 1"),
        ("plan", {"total_samples": 1}, "plan.sizes.global_batch_size must be at least 1"),
        ("plan", {"sizes": {"global_batch_size": 4}}, "plan must hold total_samples"),
        ("eval_row", {}, "eval_row must hold global_step"),
        ("ledgers", {"train": None}, "ledgers must hold train and eval"),
        ("patience", {**RUN["patience"], "since_best": 0.5}, "patience must count since_best and since_drop"),
        ("patience", {**RUN["patience"], "factor": "1"}, "patience must hold the numbers factor and best"),
        ("patience", {**RUN["patience"], "best": [1]}, "patience must hold the numbers factor and best"),
        ("recorder", {"window": [[0.0, 0.0]]}, "recorder must hold two sums for window and epoch each"),
        *(
            ("recorder", {**RUN["recorder"], "clock": clock}, "the clock of recorder must hold numbers from 0")
            for clock in ([], {"time_s": -1.0}, {"time_s": "1"}, {"steady_s": float("nan")}, {"steady_samples": True})
        ),
        *(
            ("recorder", {**RUN["recorder"], "epoch": sums}, "recorder must hold two sums for window and epoch each")
            for sums in ([], [[1.0]], [[1.0, 2.0]] * 2, [["1", 2.0]], [1.0, 2.0], [[1.0, None]], {"a": 1})
        ),
        *(
            ("recorder", {**RUN["recorder"], "noise_scale": noise}, "recorder must hold two numbers for noise_scale")
            for noise in (None, [], [1.0], [1.0, "2"], [1.0, 2.0, 3.0], {"a": 1, "b": 2})
        ),
        *(
            ("data", {"kind": "indexed", "ledger_digest": counts}, "data must count what was used")
            for counts in (None, [1.0, 2, 3], [-1, 2, 3], [1 << 64, 0, 0], 3, "123")
        ),
        ("data", {"kind": "indexed", "ledger_digest": [1]}, "data must count what was used of all"),
        ("data", {"kind": "stream", "num_shards": 3, "consumed": [1, 2]}, "data must count what was used of all"),
        ("data", {"kind": [], "num_shards": 2}, "data must count what was used"),
    ],
)
def test_what_keeps_a_run_from_being_continued_is_told(name, value, fault):
    assert find_resume_fault({**RUN, name: value}) == fault
