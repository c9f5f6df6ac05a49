"""The abstract trainer: the one loop of both frameworks.

It owns epochs, samples, learning rate, metrics, files and decisions, and calls the hooks of :mod:`hvdtrain.hooks`
for everything that touches a tensor.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from hvdtrain import checkpoint
from hvdtrain.agreement import agree_on_run, check_evaluation
from hvdtrain.batching import cut_micro_batches, share_bounds
from hvdtrain.callbacks import Callback, JsonLines, Progress, StepReport
from hvdtrain.communicator import Communicator, connect
from hvdtrain.config import TrainConfig
from hvdtrain.data import Augment, Collate, IndexedData, Loader, MicroBatch
from hvdtrain.failure import ends_all_ranks, install_excepthook
from hvdtrain.hooks import Hooks, Signature
from hvdtrain.metrics import Meter
from hvdtrain.nonfinite import raise_nonfinite
from hvdtrain.plan import RunPlan, make_plan
from hvdtrain.portable import PortableState
from hvdtrain.recorder import Counters, Recorder
from hvdtrain.replicas import require_equal_replicas
from hvdtrain.run_folder import RunFolder
from hvdtrain.schedule import Patience, Schedule, build_schedule
from hvdtrain.sources import Source, SourceStep, length_of, make_source
from hvdtrain.step import StepResult, StepVotes
from hvdtrain.stream import Stream
from hvdtrain.tensorboard import TensorBoard
from hvdtrain.topology import Topology
from hvdtrain.trace import Trace
from hvdtrain.versions import installed_versions

_log = logging.getLogger(__name__)

Summary = dict[str, Any]


class Trainer(Hooks):
    """Trains one model on all ranks of the launch, the same in every framework.

    Every rank constructs one and calls :meth:`fit`. The constructor only stores; work begins in ``fit``.
    """

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
            init_from: Checkpoint whose weights training starts from, in place of the model's own.
            trace_every_steps: Write the norms of all tensors each step, and all weights every so many steps.
            job_digest: Digest of the job file, compared between ranks.
        """
        self.model, self.loss, self.metrics, self.optimizer = model, loss, metrics, optimizer
        self.config, self.names, self.job_digest = config, dict(names or {}), job_digest
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.user_callbacks, self.augment, self.collate = tuple(callbacks), augment, collate
        self.init_from = None if init_from is None else Path(init_from)
        self.trace_every_steps = trace_every_steps
        self.topology = Topology()
        self.counters = Counters()

    def fit(self, train_data: IndexedData | Stream, eval_data: IndexedData | None = None) -> Summary:
        """Train, evaluate and save; return what ``summary.json`` holds.

        Args:
            train_data: Has ``len()`` and ``[i]``, or is a stream; the same on every rank.
            eval_data: Has ``len()`` and ``[i]``; ``None`` for no evaluation.

        Raises:
            HvdTrainError: On all ranks together. An error of one rank alone ends the whole launch instead.
        """
        install_excepthook()
        self.communicator: Communicator = connect()
        self.topology = self.communicator.topology
        self._folder: RunFolder | None = None
        self._callbacks: list[Callback] = []
        with ends_all_ranks(self.communicator):
            try:
                self.start()
                self._begin(train_data, eval_data)
                return self._run()
            finally:
                self.stop()
                for callback in self._callbacks:
                    callback.close()
                if self._folder is not None:
                    self._folder.close()

    def request_stop(self) -> None:
        """Ask all ranks to stop together after the next step; any rank, any callback may."""
        self._wants_stop = True

    def _begin(self, train_data: IndexedData | Stream, eval_data: IndexedData | None) -> None:
        communicator = self.communicator
        communicator.together(lambda: self._make_plan(train_data, eval_data))
        agree_on_run(communicator, self.framework, self.config, self._plan, self.job_digest)
        self._folder = communicator.together(self._open_folder)
        probe: MicroBatch = communicator.run_on_root(self._source.probe)
        self._signature: Signature = communicator.together(lambda: self.prepare(probe))
        self._notes = sorted({*self._signature.notes, *(["native optimizer"] if self.optimizer is not None else [])})
        communicator.agree("probe", self._signature.facts(), "Build the same model on every rank.")
        if self.init_from is not None:
            communicator.run_on_root(self._import_weights)
        self.broadcast_state()
        self._require_equal_replicas("start")
        self._recorder = Recorder(self.counters, self.config.log_every_steps)
        self._patience = Patience.of(self.config)
        self._wants_stop = self._is_stopping = False
        self._eval_row: dict[str, Any] | None = None
        self._ledger: dict[str, int | None] | None = None
        self._has_warned = False
        if self._folder is not None:
            self._folder.write_config(self.config.model_dump(mode="json"))
        self._callbacks = self._all_callbacks()

    def _make_plan(self, train_data: IndexedData | Stream, eval_data: IndexedData | None) -> None:
        config, topology = self.config, self.topology
        self.counters = Counters()
        self._plan: RunPlan = make_plan(
            config,
            num_samples=length_of(train_data, "train_data"),
            num_eval_samples=None if eval_data is None else length_of(eval_data, "eval_data", may_stream=False),
            size=topology.size,
        )
        check_evaluation(config, self._plan)
        self._schedule: Schedule = build_schedule(config, self._plan)
        self._source: Source = make_source(
            train_data, self._plan.sizes, topology, config, augment=self.augment, collate=self.collate
        )
        self._eval_loader = (
            None if eval_data is None else Loader(eval_data, collate=self.collate, workers=config.data_workers)
        )

    def _run(self) -> Summary:
        self._notify("on_fit_begin")
        while not self._is_over():
            self._train_epoch()
            self._notify("on_epoch_end", self.counters.epoch)
            if self.counters.epoch % self.config.eval_every_epochs == 0 or self._is_over():
                self._evaluate()
        if self._eval_row is None or self._eval_row["global_step"] != self.counters.global_step:
            self._evaluate()
        self._save()
        return self._finish()

    def _train_epoch(self) -> None:
        counters, total = self.counters, self._plan.total_steps
        counters.epoch += 1
        self._recorder.begin_epoch()
        left = None if total is None else total - counters.global_step
        epoch = self._source.iter_epoch(counters.epoch, first_step=counters.step_in_epoch, max_steps=left)
        is_complete = False
        with closing(epoch) as steps:
            for step in steps:
                is_complete = self._train_step(step)
                if is_complete or self._is_stopping:
                    break
        self._ledger = self._source.close_epoch(counters.epoch, counters.step_in_epoch, self.communicator.allreduce_sum)
        if is_complete or not self._is_over():
            counters.step_in_epoch = 0

    def _train_step(self, step: SourceStep) -> bool:
        """Make one update; return whether no rank has anything left in the epoch."""
        counters, batches = self.counters, step.micro_batches
        lr = self._schedule(counters.samples_seen) * self._patience.factor
        votes = StepVotes(
            num_samples=sum(batch.num_samples for batch in batches),
            num_passes=len(batches),
            stop=self._wants_stop or self._is_out_of_time(),
            end=step.is_last,
        )
        result = self.train_step([self.make_batch(batch) for batch in batches], lr=lr, votes=votes)
        counters.global_step += 1
        counters.step_in_epoch += 1
        counters.samples_seen += result.num_samples
        is_complete = result.end_votes == self.topology.size
        self._is_stopping = result.stop_votes > 0
        self._check_step(result, batches)
        self._recorder.add(result)
        is_last = is_complete or self._is_over() or counters.step_in_epoch == self._plan.steps_per_epoch
        row = self._recorder.train_row(result, lr, is_last_of_epoch=is_last)
        self._notify("on_step_end", StepReport(counters.global_step, counters.epoch, result, row))
        return is_complete

    def _evaluate(self) -> None:
        if self._eval_loader is None or self._plan.num_eval_samples is None:
            return
        began = time.perf_counter()
        self.average_statistics()
        meter = Meter(self._signature.metric_names)
        start, stop = share_bounds(self._plan.num_eval_samples, rank=self.topology.rank, size=self.topology.size)
        rows = cut_micro_batches(np.arange(start, stop), batch_size=self._plan.sizes.batch_size)
        with closing(self._eval_loader.iter_steps([[part] for part in rows], epoch=0)) as steps:
            for (batch,) in steps:
                meter.add(self.eval_step(self.make_batch(batch)))
        meter.reduce(self.communicator.allreduce_sum)
        self._eval_row = self._recorder.eval_row(meter.means())
        self._recorder.pause(time.perf_counter() - began)
        if self._patience.update(self._eval_row["loss"]):
            self._is_stopping = True
        self._notify("on_evaluate", self._eval_row)

    def _save(self) -> None:
        began = time.perf_counter()
        self.average_statistics()
        state = self._require_equal_replicas(f"step {self.counters.global_step}")
        manifest = self._manifest()
        folder = self._folder
        path = self.communicator.run_on_root(
            lambda: folder and checkpoint.commit(folder.checkpoints, self.counters.global_step, state, manifest)
        )
        self._recorder.pause(time.perf_counter() - began)
        if path is not None:
            self._notify("on_checkpoint", path)

    # ------------------------------------------------------------------ parts of the loop
    def _open_folder(self) -> RunFolder | None:
        if self.run_dir is None or not self.topology.is_root:
            return None
        return RunFolder.open(self.run_dir)

    def _import_weights(self) -> None:
        assert self.init_from is not None
        self.import_state(replace(checkpoint.load(self.init_from).state, slots={}))

    def _all_callbacks(self) -> list[Callback]:
        built_in: list[Callback] = [Progress()]
        if self._folder is not None:
            built_in += [JsonLines(self._folder), TensorBoard(self._folder.path)]
            if self.trace_every_steps is not None:
                built_in.append(Trace(self._folder.path, self.trace_every_steps))
        return [*built_in, *self.user_callbacks]

    def _is_over(self) -> bool:
        plan, counters = self._plan, self.counters
        if self._is_stopping or (plan.total_steps is not None and counters.global_step >= plan.total_steps):
            return True
        return counters.step_in_epoch == 0 and plan.epochs is not None and counters.epoch >= plan.epochs

    def _is_out_of_time(self) -> bool:
        return self.config.max_time_s is not None and self._recorder.elapsed_s() >= self.config.max_time_s

    def _check_step(self, result: StepResult, batches: Sequence[MicroBatch]) -> None:
        step = self.counters.global_step
        if not result.is_finite and self.config.on_nonfinite == "raise":
            raise_nonfinite(self, step, result, batches)
        if result.is_finite and result.weight_sum == 0 and not self._has_warned and self.topology.is_root:
            self._has_warned = True
            _log.warning("step %d: all weights are 0, nothing was updated; further ones are not reported", step)

    def _require_equal_replicas(self, where: str) -> PortableState:
        state = self.export_state()
        require_equal_replicas(where, {**state.weights, **state.slots}, self.communicator)
        return state

    def _manifest(self) -> dict[str, Any]:
        return {
            "framework": self.framework,
            "versions": installed_versions(self.framework),
            "size": self.topology.size,
            "notes": self._notes,
            **asdict(self.counters),
            "data": self._source.manifest(self.counters.epoch, self.communicator.allreduce_sum),
            "config": self.config.model_dump(mode="json"),
        }

    def _finish(self) -> Summary:
        counters = self.counters
        summary: Summary = {
            "framework": self.framework,
            "size": self.topology.size,
            "epoch": counters.epoch,
            "global_step": counters.global_step,
            "samples_seen": counters.samples_seen,
            "train": self._recorder.epoch_means(),
            "eval": self._eval_row and {name: self._eval_row[name] for name in self._signature.metric_names},
            "ledger": {"train": self._ledger},
            "samples_per_s": self._recorder.samples_per_s(),
            "time_s": self._recorder.elapsed_s(),
        }
        if self._folder is not None:
            self._folder.write_summary(summary)
        self._notify("on_fit_end", summary)
        return summary

    def _notify(self, hook: str, *arguments: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, hook)(self, *arguments)
