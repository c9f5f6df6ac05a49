"""What the manifest of a checkpoint must look like before anything in it is used.

Its own digest proves that it is whole, not that it is well meant: a stranger can compute one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

#: The files of a checkpoint besides its manifest: weights, slots.
FILES = ("model.safetensors", "optimizer.safetensors")

_COUNTERS = {"epoch", "step_in_epoch", "global_step", "samples_seen"}
_KINDS = {
    **dict.fromkeys(("files", "aliases", "versions", "counters", "plan", "data", "patience", "recorder"), dict),
    **dict.fromkeys(("ledgers", "config", "eval_row"), dict),
    **{"framework": str, "notes": list, "began_from": str},
}
#: Written as null where there is nothing.
_MAY_BE_NULL = {"eval_row"}


def find_fault(manifest: Mapping[str, Any]) -> str | None:
    """Return the first rule that a manifest breaks, ``None`` when it breaks none; what it lacks is no fault here."""
    return next(_faults(manifest), None)


def find_resume_fault(manifest: Mapping[str, Any]) -> str | None:
    """Return the first rule that keeps a manifest without faults from being continued, ``None`` when none does."""
    return next(_resume_faults(manifest), None)


def _resume_faults(manifest: Mapping[str, Any]) -> Iterator[str]:
    if manifest["counters"].keys() != _COUNTERS:
        yield f"counters must hold {', '.join(sorted(_COUNTERS))}"
    for place in ("size",), ("plan", "sizes", "global_batch_size"):
        if _value_at(manifest, place) < 1:
            yield f"{'.'.join(place)} must be at least 1"
    if "total_samples" not in manifest["plan"]:
        yield "plan must hold total_samples"
    row = manifest["eval_row"]
    if row is not None and "global_step" not in row:
        yield "eval_row must hold global_step"
    if not {"train", "eval"} <= manifest["ledgers"].keys():
        yield "ledgers must hold train and eval"
    patience = manifest["patience"]
    if not all(_is_count(patience.get(name)) for name in ("since_best", "since_drop")):
        yield "patience must count since_best and since_drop"
    if "best" not in patience or not _are_numbers([patience.get("factor"), patience["best"] or 0.0]):
        yield "patience must hold the numbers factor and best"
    sums = [manifest["recorder"].get(name) for name in ("window", "epoch")]
    if not all(isinstance(rows, list) and [len(row) for row in rows if _are_numbers(row)] == [2] for rows in sums):
        yield "recorder must hold two sums for window and epoch each"
    noise = manifest["recorder"].get("noise_scale", [0.0, 0.0])
    if not _are_numbers(noise) or len(noise) != 2:
        yield "recorder must hold two numbers for noise_scale"
    clock = manifest["recorder"].get("clock", {})
    if not isinstance(clock, dict) or not all(_is_amount(value) for value in clock.values()):
        yield "the clock of recorder must hold numbers from 0"
    data = manifest["data"]
    is_indexed = data.get("kind") == "indexed"
    counts = data.get("ledger_digest" if is_indexed else "consumed")
    if not isinstance(counts, list) or not all(type(count) is int and 0 <= count < 1 << 64 for count in counts):
        yield "data must count what was used"
    elif not (len(counts) == 3 if is_indexed else len(counts) == data.get("num_shards")):
        yield "data must count what was used of all"


def _faults(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rule that is broken; only the first one counts, because each relies on those before."""
    for name, kind in _KINDS.items():
        is_absent = name not in manifest or (manifest[name] is None and name in _MAY_BE_NULL)
        if not is_absent and not isinstance(manifest[name], kind):
            yield f"{name} must be of type {kind.__name__}"
    files = manifest.get("files", {})
    if set(files) != set(FILES) or not all(map(_is_file, files.values())):
        yield f"files must hold a sha256 and the bytes of {' and '.join(FILES)}, and of nothing else"
    counters = manifest.get("counters", {})
    if not counters.keys() <= _COUNTERS or not all(map(_is_count, counters.values())):
        yield f"counters must be whole numbers named {', '.join(sorted(_COUNTERS))}"
    for name in ("aliases", "versions"):
        if not all(value is None or isinstance(value, str) for value in manifest.get(name, {}).values()):
            yield f"{name} must map names to text"
    if not all(isinstance(note, str) for note in manifest.get("notes", [])):
        yield "notes must be text"
    places = ("size",), ("eval_row", "global_step"), ("plan", "total_samples"), ("plan", "sizes", "global_batch_size")
    for place in places:
        if not _is_count(_value_at(manifest, place)):
            yield f"{'.'.join(place)} must be a whole number"


def _value_at(manifest: Mapping[str, Any], place: tuple[str, ...]) -> Any:
    """Return the value at a place, 0 where there is none."""
    value: Any = manifest
    for name in place:
        value = value.get(name) if isinstance(value, dict) else "no dictionary" if value is not None else None
    return 0 if value is None else value


def _is_file(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"sha256", "bytes"}
        and _is_count(value["bytes"])
        and isinstance(value["sha256"], str)
        and re.fullmatch("[0-9a-f]{64}", value["sha256"]) is not None
    )


def _is_count(value: Any) -> bool:
    """Return whether a value is a whole number that 64 bits hold; JSON knows larger ones, and true is none."""
    return type(value) is int and 0 <= value < 1 << 63


def _is_amount(value: Any) -> bool:
    return _are_numbers([value]) and 0 <= value < 1 << 63


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) in (int, float) for value in values)
