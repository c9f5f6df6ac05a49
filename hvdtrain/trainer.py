"""The abstract trainer: the one loop of both frameworks, and the hooks that an adapter fills.

The loop owns epochs, samples, learning rate, metrics, files and decisions. An adapter owns tensors: it never
loops over epochs, picks samples or a learning rate, names a file, averages a metric or prints.
"""

from __future__ import annotations

import abc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hvdtrain import checkpoint
from hvdtrain.batching import Order, cut_micro_batches, iter_shares, share_bounds
from hvdtrain.callbacks import Callback, JsonLines, Progress, StepReport, TensorBoard
from hvdtrain.communicator import Communicator, connect
from hvdtrain.config import TrainConfig
from hvdtrain.data import Augment, Collate, IndexedData, Loader, MicroBatch
from hvdtrain.errors import ConfigError, NonFiniteError
from hvdtrain.failure import ends_all_ranks, install_excepthook
from hvdtrain.metrics import Meter
from hvdtrain.plan import RunPlan, make_plan
from hvdtrain.portable import PortableState
from hvdtrain.recorder import Counters, Recorder
from hvdtrain.replicas import require_equal_replicas
from hvdtrain.run_folder import RunFolder
from hvdtrain.schedule import Patience, Schedule, build_schedule
from hvdtrain.step import StepResult, StepVotes
from hvdtrain.topology import Topology
from hvdtrain.versions import installed_versions

_log = logging.getLogger(__name__)

Summary = dict[str, Any]


@dataclass(frozen=True)
class Signature:
    """What the probe learned of a model; equal on all ranks.

    Attributes:
        tensors: Shape and dtype of every weight, buffer and optimizer slot, by neutral name.
        metric_names: Metrics of an evaluation, ``loss`` first.
    """

    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    metric_names: tuple[str, ...]


class Trainer(abc.ABC):
    """Trains one model on all ranks of the launch, the same in every framework.

    Every rank constructs one and calls :meth:`fit`. The constructor only stores; work begins in ``fit``.
    """

    framework: ClassVar[str]

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
            job_digest: Digest of the job file, compared between ranks.
        """
        self.model, self.loss, self.metrics, self.optimizer = model, loss, metrics, optimizer
        self.config, self.names, self.job_digest = config, dict(names or {}), job_digest
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.user_callbacks, self.augment, self.collate = tuple(callbacks), augment, collate
        self.topology = Topology()
        self.counters = Counters()

    # ------------------------------------------------------------------ hooks, in the order in which they run
    @abc.abstractmethod
    def start(self) -> None:
        """After this call Horovod runs, the device of ``local_rank`` and the threads per rank are set."""

    @abc.abstractmethod
    def prepare(self, probe: MicroBatch) -> Signature:
        """After this call the model is built, has been run once on ``probe``, and its optimizer is wrapped.

        The model's state and random numbers are as before the run; optimizer slots exist.

        Raises:
            DataError: Loss or metrics do not return one value per element.
        """

    @abc.abstractmethod
    def broadcast_state(self) -> None:
        """After this call every rank holds the root's parameters, buffers and optimizer slots."""

    @abc.abstractmethod
    def make_batch(self, micro_batch: MicroBatch) -> Any:
        """Return the batch as the framework's tensors on this rank's device; structure and dtypes stay."""

    @abc.abstractmethod
    def train_step(self, micro_batches: Sequence[Any], *, lr: float, votes: StepVotes) -> StepResult:
        """After this call every rank has made the same update, from one reduction.

        Args:
            micro_batches: Batches of :meth:`make_batch`; none for an empty share.
            lr: Learning rate of this update.
            votes: What this rank adds to the step tensor.

        Returns:
            The reduced step tensor. Without weight, or not finite, nothing was updated.
        """

    @abc.abstractmethod
    def average_statistics(self) -> None:
        """After this call running statistics are the mean over ranks, and other buffers the root's."""

    @abc.abstractmethod
    def eval_step(self, batch: Any) -> dict[str, tuple[float, float]]:
        """Return ``{name: (weighted sum, sum of weights)}`` of loss and metrics in evaluation mode."""

    @abc.abstractmethod
    def export_state(self) -> PortableState:
        """Return weights, buffers and optimizer slots under neutral names; arrays may share memory."""

    @abc.abstractmethod
    def import_state(self, state: PortableState) -> None:
        """After this call this rank holds ``state``; a tensor without partner is an error that lists both sides."""

    @abc.abstractmethod
    def stop(self) -> None:
        """After this call the trainer holds no framework resource; runs always, also after an error."""

    # ------------------------------------------------------------------ the loop
    def fit(self, train_data: IndexedData, eval_data: IndexedData | None = None) -> Summary:
        """Train, evaluate and save; return what ``summary.json`` holds.

        Args:
            train_data: Has ``len()`` and ``[i]``; the same on every rank.
            eval_data: The same for evaluation; ``None`` for none.

        Raises:
            HvdTrainError: On all ranks together. An error of one rank alone ends the whole launch instead.
        """
        self.communicator: Communicator = connect()
        self.topology = self.communicator.topology
        self.counters = Counters()
        with ends_all_ranks(self.communicator):
            install_excepthook(self.communicator)
            self._folder: RunFolder | None = None
            try:
                self.start()
                self._begin(train_data, eval_data)
                return self._run()
            finally:
                self.stop()
                if self._folder is not None:
                    self._folder.close()

    def request_stop(self) -> None:
        """Ask all ranks to stop together after the next step; any rank, any callback may."""
        self._wants_stop = True

    def _begin(self, train_data: IndexedData, eval_data: IndexedData | None) -> None:
        communicator, config = self.communicator, self.config
        self._plan: RunPlan = communicator.together(
            lambda: make_plan(config, num_samples=len(train_data), size=self.topology.size)
        )
        self._schedule: Schedule = communicator.together(lambda: build_schedule(config, self._plan))
        communicator.together(lambda: self._check(eval_data))
        self._agree(train_data, eval_data)
        self._folder = communicator.together(self._open_folder)
        self._train_loader = Loader(
            train_data, seed=config.seed, augment=self.augment, collate=self.collate, workers=config.data_workers
        )
        self._eval_data = eval_data
        self._eval_loader = eval_data and Loader(eval_data, collate=self.collate, workers=config.data_workers)
        rows = np.minimum([0, 1], len(train_data) - 1)
        probe: MicroBatch = communicator.run_on_root(lambda: self._train_loader.load(rows))
        self._signature = communicator.together(lambda: self.prepare(probe))
        communicator.agree(
            "probe", {"model": self._signature}, "Build the same model on every rank, whatever its rank."
        )
        self.broadcast_state()
        self._require_equal_replicas("start")
        self._recorder = Recorder(self.counters, config.log_every_steps)
        self._patience = Patience.of(config)
        self._wants_stop = self._is_stopping = False
        self._last_eval: dict[str, Any] | None = None
        self._callbacks = self._all_callbacks()

    def _run(self) -> Summary:
        self._notify("on_fit_begin")
        while not self._is_over():
            self._train_epoch()
            self._notify("on_epoch_end", self.counters.epoch)
            if self.counters.epoch % self.config.eval_every_epochs == 0 or self._is_over():
                self._evaluate()
        if self._last_eval is None or self._last_eval["global_step"] != self.counters.global_step:
            self._evaluate()
        self._save()
        return self._finish()

    def _train_epoch(self) -> None:
        counters, sizes = self.counters, self._plan.sizes
        counters.epoch += 1
        self._recorder.begin_epoch()
        left = None if self._plan.total_steps is None else self._plan.total_steps - counters.global_step
        shares = iter_shares(
            self._order(counters.epoch),
            sizes,
            rank=self.topology.rank,
            size=self.topology.size,
            first_step=counters.step_in_epoch,
            stop_step=None if left is None else counters.step_in_epoch + left,
        )
        with closing(self._train_loader.iter_steps(shares, epoch=counters.epoch)) as steps:
            for micro_batches in steps:
                self._train_step(micro_batches)
                if self._is_stopping:
                    return
        counters.step_in_epoch = 0

    def _train_step(self, micro_batches: Sequence[MicroBatch]) -> None:
        counters = self.counters
        lr = self._schedule(counters.samples_seen) * self._patience.factor
        votes = StepVotes(
            num_samples=sum(batch.num_samples for batch in micro_batches),
            num_passes=len(micro_batches),
            stop=self._wants_stop or self._is_out_of_time(),
        )
        result = self.train_step([self.make_batch(batch) for batch in micro_batches], lr=lr, votes=votes)
        counters.global_step += 1
        counters.step_in_epoch += 1
        counters.samples_seen += result.num_samples
        self._is_stopping = result.stop_votes > 0
        self._check_step(result)
        self._recorder.add(result)
        is_last = self._is_stopping or self._is_over() or counters.step_in_epoch == self._plan.steps_per_epoch
        row = self._recorder.train_row(result, lr, is_last_of_epoch=is_last)
        self._notify("on_step_end", StepReport(counters.global_step, counters.epoch, result, row))

    def _evaluate(self) -> None:
        if self._eval_data is None or self._eval_loader is None:
            return
        began = time.perf_counter()
        self.average_statistics()
        meter = Meter(self._signature.metric_names)
        start, stop = share_bounds(len(self._eval_data), rank=self.topology.rank, size=self.topology.size)
        rows = cut_micro_batches(np.arange(start, stop), batch_size=self._plan.sizes.batch_size)
        with closing(self._eval_loader.iter_steps([[part] for part in rows], epoch=0)) as steps:
            for (batch,) in steps:
                meter.add(self.eval_step(self.make_batch(batch)))
        meter.reduce(self.communicator.allreduce_sum)
        self._last_eval = self._recorder.eval_row(meter.means())
        self._recorder.pause(time.perf_counter() - began)
        if self._patience.update(self._last_eval["loss"]):
            self._is_stopping = True
        self._notify("on_evaluate", self._last_eval)

    def _save(self) -> None:
        began = time.perf_counter()
        self.average_statistics()
        state = self._require_equal_replicas(f"step {self.counters.global_step}")
        folder = self._folder
        path = self.communicator.run_on_root(
            lambda: folder and checkpoint.commit(folder.checkpoints, self.counters.global_step, state, self._manifest())
        )
        self._recorder.pause(time.perf_counter() - began)
        if path is not None:
            self._notify("on_checkpoint", path)

    # ------------------------------------------------------------------ parts of the loop
    def _check(self, eval_data: IndexedData | None) -> None:
        if eval_data is not None and len(eval_data) == 0:
            raise ConfigError("plan: eval_data must hold at least 1 sample, got 0. Leave it out to skip evaluation.")
        needs = [name for name in ("early_stop_patience", "keep_best") if getattr(self.config, name) is not None]
        needs += ["decay='plateau'"] if self.config.decay == "plateau" else []
        if needs and eval_data is None:
            raise ConfigError(f"plan: {needs[0]} needs evaluations, got no eval_data. Give the job eval_data().")

    def _agree(self, train_data: IndexedData, eval_data: IndexedData | None) -> None:
        self.communicator.agree(
            "versions", installed_versions(self.framework), "Install the same versions on every host."
        )
        facts = {
            "framework": self.framework,
            "len(train_data)": len(train_data),
            "len(eval_data)": None if eval_data is None else len(eval_data),
            "job file": self.job_digest,
            **self.config.model_dump(),
        }
        self.communicator.agree("plan", facts, "Give every rank the same job, data and options.")

    def _open_folder(self) -> RunFolder | None:
        if self.run_dir is None or not self.topology.is_root:
            return None
        folder = RunFolder.open(self.run_dir)
        folder.write_config(self.config.model_dump(mode="json"))
        return folder

    def _all_callbacks(self) -> list[Callback]:
        built_in: list[Callback] = [Progress()]
        if self._folder is not None:
            built_in += [JsonLines(self._folder), TensorBoard(self._folder.path)]
        return [*built_in, *self.user_callbacks]

    def _order(self, epoch: int) -> Order:
        assert self._plan.num_samples is not None
        return Order(self._plan.num_samples, seed=self.config.seed, epoch=epoch, shuffle=self.config.shuffle)

    def _is_over(self) -> bool:
        plan, counters = self._plan, self.counters
        if self._is_stopping or (plan.total_steps is not None and counters.global_step >= plan.total_steps):
            return True
        return counters.step_in_epoch == 0 and plan.epochs is not None and counters.epoch >= plan.epochs

    def _is_out_of_time(self) -> bool:
        return self.config.max_time_s is not None and self._recorder.elapsed_s() >= self.config.max_time_s

    def _check_step(self, result: StepResult) -> None:
        if not result.is_finite and self.config.on_nonfinite == "raise":
            error = NonFiniteError(
                f"step {self.counters.global_step}: loss and gradient must be finite, got loss sum {result.loss_sum} "
                f"and gradient norm {result.grad_norm}. Lower the learning rate, or set on_nonfinite='skip'."
            )
            error.is_agreed = True
            raise error
        if result.is_finite and result.weight_sum == 0 and self.topology.is_root:
            _log.warning("step %d: all weights are 0, nothing was updated", self.counters.global_step)

    def _require_equal_replicas(self, where: str) -> PortableState:
        state = self.export_state()
        require_equal_replicas(where, {**state.weights, **state.slots}, self.communicator)
        return state

    def _manifest(self) -> dict[str, Any]:
        counters = self.counters
        return {
            "framework": self.framework,
            "versions": installed_versions(self.framework),
            "size": self.topology.size,
            "epoch": counters.epoch,
            "step_in_epoch": counters.step_in_epoch,
            "global_step": counters.global_step,
            "samples_seen": counters.samples_seen,
            "num_samples": self._plan.num_samples,
            "order_digest": self._order(max(counters.epoch, 1)).digest(),
            "config": self.config.model_dump(mode="json"),
        }

    def _finish(self) -> Summary:
        counters, event = self.counters, self._last_eval
        head = ("event", "epoch", "global_step", "samples_seen", "time_s")
        summary: Summary = {
            "framework": self.framework,
            "size": self.topology.size,
            "epoch": counters.epoch,
            "global_step": counters.global_step,
            "samples_seen": counters.samples_seen,
            "train": self._recorder.epoch_means(),
            "eval": event and {name: value for name, value in event.items() if name not in head},
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
