"""Continue a run: find the checkpoint, and refuse what would make it another run."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hvdtrain import checkpoint
from hvdtrain.batching import resolve_batch_sizes
from hvdtrain.config import TrainConfig
from hvdtrain.errors import CheckpointError, ConfigError
from hvdtrain.launch.telling import FIRST_RANKS, LAUNCHER, RESTART
from hvdtrain.manifest import find_resume_fault
from hvdtrain.plain_files import open_plain
from hvdtrain.plan import RunPlan
from hvdtrain.tensor_file import OnBytes, ignore
from hvdtrain.wording import counted

_log = logging.getLogger(__name__)

#: Settings that change how a run is cut, watched or ended, and never what an update is.
_FREE = {
    *("epochs", "max_steps", "max_time_s", "batch_size", "backward_passes_per_step", "global_batch_size"),
    *("data_workers", "noise_scale", "log_every_steps", "save_every_steps", "save_every_epochs", "save_every_minutes"),
    *("keep_last", "keep_best", "early_stop_patience", "stall_timeout_s", "check_replicas_every_steps"),
    *("on_nonfinite", "eval_every_epochs", "compile"),
}


@dataclass(frozen=True)
class Found:
    """The checkpoint that a run continues from: where it lies on the root's disk, and what it says.

    Attributes:
        newest: Name of the newest checkpoint of the run folder, damaged or not; empty for one from elsewhere.
    """

    path: Path
    manifest: Mapping[str, Any]
    newest: str = ""


@dataclass(frozen=True)
class ResumeRequest:
    """What the user asked for.

    Attributes:
        is_wanted: Take the newest valid checkpoint of the run folder; start fresh when there is none.
        path: Take this checkpoint instead, or the newest valid one of this run folder.
        allows_config_change: Let settings differ that change the updates.
        is_restart: The launcher has launched the job again: take the newest valid checkpoint that the earlier attempts
            have left in the run folder, and what was asked for only where they left none.
        launch_id: Names the launch in all its attempts; empty without ``hvdtrain launch``.
    """

    is_wanted: bool = False
    path: Path | None = None
    allows_config_change: bool = False
    is_restart: bool = False
    launch_id: str = ""

    def in_launch(self, environ: Mapping[str, str]) -> ResumeRequest:
        """Return this request with what a launcher says in the environment."""
        is_restart = environ.get(RESTART, "") not in ("", "0")
        return replace(self, is_restart=is_restart, launch_id=environ.get(LAUNCHER, ""))

    def may_continue(self, run_dir: Path) -> bool:
        """Return whether a run folder may hold a run; after a restart, only one of the same launch."""
        if self.is_wanted or not self.is_restart:
            return self.is_wanted
        try:
            with open_plain(run_dir / _SIGNATURE) as stream:
                return stream.read(len(self.launch_id) + 1) == self.launch_id.encode()
        except OSError:
            return not self.launch_id

    def sign(self, run_dir: Path) -> None:
        """Note in the run folder which launch it belongs to."""
        if self.launch_id:
            unfinished = run_dir / f"{_SIGNATURE}.tmp"
            unfinished.unlink(missing_ok=True)
            with unfinished.open("x") as stream:
                stream.write(self.launch_id)
            os.replace(unfinished, run_dir / _SIGNATURE)

    def find(self, folder: Path | None, on_bytes: OnBytes = ignore) -> Found | None:
        """Return the checkpoint to continue from; ``None`` for a fresh start. ``on_bytes`` is told of what is read.

        Raises:
            CheckpointError: The one asked for is damaged, or there are some and none is whole.
        """
        has_own = self.is_restart and folder is not None and bool(checkpoint.list_checkpoints(folder))
        if self.path is not None and not has_own:
            return _found(checkpoint.load_named(self.path, on_bytes))
        if not (self.is_wanted or self.is_restart) or folder is None:
            return None
        found = checkpoint.find_latest(folder, on_bytes)
        if found is None:
            tell = _log.warning if self.is_wanted else _log.info
            tell("resume: no checkpoint in %s, starting fresh", folder)
            return None
        paths = checkpoint.list_checkpoints(folder)
        newer = [path.name for path in paths[paths.index(found.path) + 1 :]]
        if newer:
            _log.warning("resume: damaged and passed over: %s; continuing from %s", ", ".join(newer), found.path.name)
        return replace(_found(found), newest=paths[-1].name)

    def require_at_rest(self, folder: Path, found: Found | None) -> None:
        """Refuse a run folder into which another run has saved since the checkpoint was chosen; call it locked.

        Raises:
            ConfigError: It has; to go on would remove what it saved.
        """
        if not (self.is_wanted or self.is_restart) or (found is not None and not found.newest):
            return
        newest = [path.name for path in checkpoint.list_checkpoints(folder)][-1:]
        if newest != ([found.newest] if found is not None else []):
            raise ConfigError(
                f"run folder: {folder.parent} must be at rest, and another run has just saved {newest} there. "
                "Start this one again."
            )


def resume_request(wanted: ResumeRequest | bool | None) -> ResumeRequest:
    """Return the request that a plain yes or no stands for."""
    return wanted if isinstance(wanted, ResumeRequest) else ResumeRequest(is_wanted=bool(wanted))


#: A file in the run folder that names its launch.
_SIGNATURE = ".launch"

#: Parts of a manifest that a run is continued from.
_NEEDED = ("config", "counters", "data", "eval_row", "ledgers", "patience", "plan", "recorder")


def _found(read: checkpoint.Checkpoint) -> Found:
    missing = [name for name in _NEEDED if name not in read.manifest]
    if missing:
        raise CheckpointError(
            f"resume: {read.path} must hold where its run stood, got none of {', '.join(missing)}. "
            "Start from its weights with --init-from."
        )
    fault = find_resume_fault(read.manifest)
    if fault is not None:
        raise CheckpointError(
            f"resume: {fault}, got something else in {read.path}. Start from its weights with --init-from."
        )
    return Found(read.path, read.manifest)


def warn_of_fewer_steps(manifest: Mapping[str, Any], plan: RunPlan) -> None:
    """Say so where a run is to end earlier than it was to: its length is given anew at each start."""
    planned, total = manifest["plan"]["total_steps"], plan.total_steps
    if planned and total and total < planned:
        _log.warning(
            "resume: the run was to make %s and ends after %s now; a checkpoint keeps no length, give --epochs or "
            "--max-steps again",
            counted(planned, "step"),
            f"{total:,}",
        )


def settings_to_continue(config: TrainConfig, manifest: Mapping[str, Any], size: int) -> TrainConfig:
    """Return ``config`` with the global batch of the run, which another number of ranks must not change."""
    global_batch_size = manifest["plan"]["sizes"]["global_batch_size"]
    return _with_global_batch(config, global_batch_size, is_other_size=manifest["size"] != size)


def settings_to_restart(config: TrainConfig, size: int, environ: Mapping[str, str]) -> TrainConfig:
    """Return ``config`` with the global batch of the launch's first attempt, where that had other ranks.

    Args:
        config: The settings.
        size: Ranks of this attempt.
        environ: Tells the ranks of the first one.
    """
    first_size = int(environ.get(FIRST_RANKS, size))
    if first_size == size:
        return config
    sizes = resolve_batch_sizes(
        size=first_size,
        global_batch_size=config.global_batch_size,
        batch_size=config.batch_size,
        backward_passes_per_step=config.backward_passes_per_step,
    )
    return _with_global_batch(config, sizes.global_batch_size, is_other_size=True)


def _with_global_batch(config: TrainConfig, global_batch_size: int, *, is_other_size: bool) -> TrainConfig:
    """Fix the global batch; the passes follow where all three numbers were given for another number of ranks."""
    if config.global_batch_size is None:
        return config.replace(global_batch_size=global_batch_size, backward_passes_per_step=None)
    if is_other_size and None not in (config.batch_size, config.backward_passes_per_step):
        return config.replace(backward_passes_per_step=None)
    return config


def require_same_run(
    manifest: Mapping[str, Any], config: TrainConfig, plan: RunPlan, data: Mapping[str, Any], request: ResumeRequest
) -> None:
    """Refuse a checkpoint of another run; the message holds both values of everything that differs.

    Args:
        manifest: What the checkpoint says.
        config: Settings now.
        plan: Plan now.
        data: What the source says of its data now: length and order, or shards.
        request: Whether changes are allowed.

    Raises:
        CheckpointError: Settings, batch, data length or order differ.
    """
    sizes = manifest["plan"]["sizes"]["global_batch_size"], plan.sizes.global_batch_size
    differing: list[tuple[str, Any, Any]] = [("global_batch_size", *sizes)]
    saved, given = manifest["config"], config.model_dump(mode="json")
    if not request.allows_config_change:
        # A setting that the version of the checkpoint did not know had its default then.
        defaults = TrainConfig().model_dump(mode="json")
        free = _FREE - ({"eval_every_epochs"} if config.decay == "plateau" else set())
        fixed = [name for name in given if name not in free]
        differing += [(name, saved.get(name, defaults[name]), given[name]) for name in fixed]
    if config.decay in ("linear", "cosine") and config.decay_epochs is None:
        differing.append(
            ("samples of the run, which the decay needs", manifest["plan"]["total_samples"], plan.total_samples)
        )
    differing += [(name, manifest["data"].get(name), value) for name, value in data.items() if value is not None]
    told = [
        f"{name} ({mine!r} in the checkpoint, {theirs!r} now)" for name, mine, theirs in differing if mine != theirs
    ]
    if told:
        raise CheckpointError(
            f"resume: a run must go on as it began, got other values of {'; '.join(told)}. Give the same settings and "
            "data; --allow-config-change lets settings differ, and the run is then another one."
        )
