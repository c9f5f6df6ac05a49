"""What happens before the first step: find what to continue, plan, agree, build, and share the root's state.

After it every rank holds the same state and knows the same run; the loop of :mod:`hvdtrain.trainer` begins there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvdtrain import checkpoint
from hvdtrain.agreement import agree_on_run, check_best, check_evaluation, check_noise_scale
from hvdtrain.callbacks import Callback, JsonLines
from hvdtrain.communicator import Communicator
from hvdtrain.config import TrainConfig
from hvdtrain.data import Augment, Collate, IndexedData, MicroBatch
from hvdtrain.errors import ConfigError
from hvdtrain.evaluation import Evaluator
from hvdtrain.hooks import Hooks, Signature
from hvdtrain.noise_scale import NoiseScale
from hvdtrain.plan import RunPlan, make_plan
from hvdtrain.portable import PortableState
from hvdtrain.progress import Progress
from hvdtrain.quiet import write_caught
from hvdtrain.recorder import Counters, Recorder
from hvdtrain.replicas import fingerprint, require_equal_replicas
from hvdtrain.resume import (
    Found,
    ResumeRequest,
    require_same_run,
    resume_request,
    settings_to_continue,
    settings_to_restart,
    warn_of_fewer_steps,
)
from hvdtrain.run_folder import RunFolder
from hvdtrain.saving import Saver
from hvdtrain.schedule import Patience, Schedule, build_schedule
from hvdtrain.sources import Source, length_of, make_source
from hvdtrain.stream import Stream
from hvdtrain.tensorboard import TensorBoard
from hvdtrain.topology import Topology
from hvdtrain.trace import Trace

_log = logging.getLogger(__name__)


class Preparation(Hooks):
    """Stores what to train, and brings all ranks to the same starting point."""

    communicator: Communicator
    _folder: RunFolder | None
    _callbacks: list[Callback]
    _eval_row: dict[str, Any] | None
    _ledger: dict[str, int | None] | None
    _saver: Saver
    _began_from: str

    def __init__(
        self,
        model: Any,
        *,
        loss: Callable[[Any, Any], Any],
        config: TrainConfig,
        metrics: Callable[[Any, Any], Mapping[str, Any]] | None = None,
        optimizer: Any = None,
        run_dir: str | Path | None = None,
        callbacks: Sequence[Callback] = (),
        augment: Augment | None = None,
        collate: Collate | None = None,
        names: Mapping[str, str] | None = None,
        init_from: str | Path | None = None,
        resume: ResumeRequest | bool | None = None,
        trace_every_steps: int | None = None,
        job_digest: str = "",
    ) -> None:
        """Store what to train.

        Args:
            model: The framework's model, or a function that makes it. A function is called after seeds, threads
                and device are set, which is the only moment when TensorFlow still accepts its threads.
            loss: ``loss(model, batch)`` returns one loss per element, of any shape, or ``(losses, weights)`` of
                one shape. A mean over the batch is refused: its weight in the global batch would be unknown.
            config: The settings.
            metrics: ``metrics(model, batch)`` returns ``{name: per-element values, or (values, weights)}``;
                called in evaluation only.
            optimizer: A framework-native optimizer, or a function of the model that makes one, in place of
                ``config.optimizer``. Its own rates are multiplied by schedule / ``config.learning_rate``.
            run_dir: Folder for configuration, metrics, summary and checkpoints; nothing is written without it.
            callbacks: Run on every rank, after the built-in ones.
            augment: ``augment(sample, rng)`` for training samples.
            collate: ``collate(samples)`` makes a batch where stacking is not enough.
            names: Neutral names for weights that the automatic mapping cannot match: ``{neutral: keras path}``.
            init_from: Checkpoint, or run folder with one, whose weights training starts from, in place of the model's
                own.
            resume: Whether to continue the run of ``run_dir`` from its newest checkpoint; a ``ResumeRequest`` may name
                another one.
            trace_every_steps: Write the norms of all tensors each step, and all weights every so many steps.
            job_digest: Digest of the job file, compared between ranks.
        """
        self.model, self.loss, self.metrics, self.optimizer = model, loss, metrics, optimizer
        self.config, self.names, self.job_digest = config, dict(names or {}), job_digest
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.user_callbacks, self.augment, self.collate = tuple(callbacks), augment, collate
        self.init_from = None if init_from is None else Path(init_from)
        self.trace_every_steps, self.resume = trace_every_steps, resume_request(resume).in_launch(os.environ)
        self.topology = Topology()
        self.counters = Counters()

    def _begin(self, train_data: IndexedData | Stream, eval_data: IndexedData | None) -> Found | None:
        """Find what to continue, plan the run, and let all ranks agree; return the checkpoint's manifest."""
        communicator = self.communicator
        checkpoints = None if self.run_dir is None else self.run_dir / "checkpoints"
        found = communicator.run_on_root(lambda: self.resume.find(checkpoints, self._read))
        communicator.together(lambda: self._make_plan(train_data, eval_data, found))
        agree_on_run(communicator, self.framework, self.config, self._plan, self.job_digest)
        self._folder = communicator.together(lambda: self._open_folder(found))
        self._recorder = Recorder(
            self.counters, self.config.log_every_steps, NoiseScale() if self.config.noise_scale else None
        )
        self._saver = Saver(None if self._folder is None else self._folder.checkpoints, self.config)
        self._patience = Patience.of(self.config)
        self._wants_stop = self._is_stopping = self._is_save_due = self._has_warned = False
        self._eval_row = self._ledger = None
        self._began_from = ""
        if found is not None:
            communicator.together(lambda: self._restore(found.manifest))
        return found

    def _make_plan(self, train_data: IndexedData | Stream, eval_data: IndexedData | None, found: Found | None) -> None:
        if found is not None:
            self.config = settings_to_continue(self.config, found.manifest, self.topology.size)
        else:
            self.config = settings_to_restart(self.config, self.topology.size, os.environ)
        config, topology = self.config, self.topology
        self.counters = Counters()
        self._plan: RunPlan = make_plan(
            config,
            num_samples=length_of(train_data, "train_data"),
            num_eval_samples=None if eval_data is None else length_of(eval_data, "eval_data", may_stream=False),
            size=topology.size,
        )
        check_evaluation(config, self._plan)
        check_noise_scale(config, self._plan, topology.size)
        self._schedule: Schedule = build_schedule(config, self._plan)
        self._source: Source = make_source(
            train_data,
            *(self._plan.sizes, topology, config),
            augment=self.augment,
            collate=self.collate,
            moved=self.position.moved,
        )
        self._evaluator = None
        if eval_data is not None:
            self._evaluator = Evaluator(eval_data, collate=self.collate, workers=config.data_workers)

    def _restore(self, manifest: Mapping[str, Any]) -> None:
        """Take everything but tensors from a checkpoint, after it was found to be of this run."""
        require_same_run(
            manifest, self.config, self._plan, self._source.facts(manifest["counters"]["epoch"]), self.resume
        )
        if self.topology.is_root:
            warn_of_fewer_steps(manifest, self._plan)
        self._source.restore(manifest["data"])
        for name, value in manifest["counters"].items():
            setattr(self.counters, name, value)
        self._patience.restore(manifest["patience"])
        self._recorder.restore(manifest["recorder"])
        self._eval_row, self._ledger = manifest["eval_row"], manifest["ledgers"]["train"]
        self._began_from = manifest.get("began_from", "")
        if self._evaluator is not None:
            self._evaluator.ledger = manifest["ledgers"]["eval"]
        self._saver.begin_at(self.counters.global_step, self._eval_row)

    def _prepare(self, found: Found | None) -> None:
        """Build the model and give every rank the root's state."""
        communicator = self.communicator
        probe: MicroBatch = communicator.run_on_root(self._source.probe)
        self._signature: Signature = communicator.together(lambda: self.prepare(probe))
        limits = {
            "native optimizer": self.optimizer is not None,
            "bf16": self.config.precision == "bf16",
            "fp16 compression": self.config.compression == "fp16",
        }
        self._notes = sorted({*self._signature.notes, *(note for note, applies in limits.items() if applies)})
        self.position.moved()
        communicator.together(lambda: check_best(self.config, self._signature.metric_names))
        communicator.agree("probe", self._signature.facts(), "Build the same model on every rank.")
        communicator.run_on_root(lambda: self._import(found))
        self.position.moved()
        self.broadcast_state()
        self.position.moved()
        state = self._require_equal_replicas("start")
        self._saver.reserve(state)
        if found is None and self.topology.is_root:
            # Written by PyTorch alone, and no weight.
            kept = {name: array for name, array in state.weights.items() if not name.endswith("num_batches_tracked")}
            self._began_from = fingerprint(kept)

    def _begin_to_write(self, found: Found | None) -> None:
        """Take away what a killed run wrote after the restored step, and open what this one writes."""
        if found is not None and self.topology.is_root:
            _log.info("resume: continuing from step %d (%s)", self.counters.global_step, found.path)
        if self._folder is not None:
            eval_step = 0 if self._eval_row is None else self._eval_row["global_step"]
            self._folder.cut_back(self.counters.global_step, eval_step)
            checkpoint.remove_unfinished(self._folder.checkpoints, newer_than=self.counters.global_step)
            self._folder.write_config(self.config.model_dump(mode="json"))
            write_caught(self._folder.path / "startup.log")
        self._callbacks = self._all_callbacks()

    def _import(self, found: Found | None) -> None:
        if found is not None:
            self.import_state(checkpoint.load(found.path, self._read).state)
        elif self.init_from is not None:
            self.import_state(replace(checkpoint.load_named(self.init_from, self._read).state, slots={}))

    def _read(self, num_bytes: int) -> None:
        self.position.moved()

    def _open_folder(self, found: Found | None) -> RunFolder | None:
        if self.run_dir is None or not self.topology.is_root:
            return None
        folder = RunFolder.open(self.run_dir, resumes=self.resume.may_continue(self.run_dir))
        try:
            self.resume.require_at_rest(folder.checkpoints, found)
        except ConfigError:
            folder.close()
            raise
        self.resume.sign(self.run_dir)
        return folder

    def _all_callbacks(self) -> list[Callback]:
        built_in: list[Callback] = [Progress()]
        if self._folder is not None:
            built_in += [JsonLines(self._folder), TensorBoard(self._folder.path)]
            if self.trace_every_steps is not None:
                built_in.append(Trace(self._folder.path, self.trace_every_steps))
        return [*built_in, *self.user_callbacks]

    def _require_equal_replicas(self, where: str) -> PortableState:
        state = self.export_state()
        require_equal_replicas(where, {**state.weights, **state.slots}, self.communicator)
        return state
