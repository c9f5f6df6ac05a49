"""The abstract trainer: the one loop of both frameworks.

It owns epochs, samples, learning rate, metrics, files and decisions, and calls the hooks of :mod:`hvdtrain.hooks`
for everything that touches a tensor.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from hvdtrain.callbacks import StepReport
from hvdtrain.communicator import connect
from hvdtrain.data import IndexedData, MicroBatch
from hvdtrain.failure import ends_all_ranks, install_excepthook
from hvdtrain.launch.telling import tell_step
from hvdtrain.nonfinite import raise_nonfinite
from hvdtrain.position import Position
from hvdtrain.preparation import Preparation
from hvdtrain.saving import Saver
from hvdtrain.signals import StopSignals, raise_stopped
from hvdtrain.sources import SourceStep
from hvdtrain.step import StepResult, StepVotes
from hvdtrain.step_split import StepSplit
from hvdtrain.stream import Stream
from hvdtrain.timeline import require_timeline
from hvdtrain.versions import installed_versions
from hvdtrain.watchdog import Watchdog

_log = logging.getLogger(__name__)

Summary = dict[str, Any]


class Trainer(Preparation):
    """Trains one model on all ranks of the launch, the same in every framework.

    Every rank constructs one and calls :meth:`fit`. The constructor only stores; work begins in ``fit``.
    """

    def fit(self, train_data: IndexedData | Stream, eval_data: IndexedData | None = None) -> Summary:
        """Train, evaluate and save; return what ``summary.json`` holds.

        Args:
            train_data: Has ``len()`` and ``[i]``, or is a stream; the same on every rank.
            eval_data: Has ``len()`` and ``[i]``; ``None`` for no evaluation.

        Raises:
            HvdTrainError: On all ranks together. An error of one rank alone ends the whole launch instead.
        """
        install_excepthook()
        self.communicator = connect()
        self.topology = self.communicator.topology
        self._folder, self._callbacks, self._saver = None, [], Saver(None, self.config)
        self.position = Position()
        self._split = StepSplit(self.position)
        with ends_all_ranks(self.communicator), StopSignals() as self._signals, self._watchdog():
            try:
                self.communicator.run_on_root(lambda: require_timeline(os.environ))
                self.start()
                found = self._begin(train_data, eval_data)
                is_done = found is not None and self._is_done()
                self._prepare(found)
                if is_done:
                    return self._say_done()
                self._begin_to_write(found)
                return self._run()
            finally:
                self.position.enter("stop")
                self.stop()
                self._saver.finish()
                for callback in self._callbacks:
                    callback.close()
                if self._folder is not None:
                    self._folder.close()

    def request_stop(self) -> None:
        """Ask all ranks to stop together after the next step; any rank, any callback may."""
        self._wants_stop = True

    def _watchdog(self) -> Watchdog:
        # A save that waits for a slow disk moves as long as bytes are written.
        timeout_s = self.config.stall_timeout_s
        return Watchdog(self.communicator, self.position, timeout_s, also_moved=lambda: self._saver.written_bytes)

    # ------------------------------------------------------------------ the loop
    def _run(self) -> Summary:
        self._notify("on_fit_begin")
        self._recorder.start_clock()
        self._end_epoch()  # a checkpoint may stand between an epoch and its evaluation
        while not self._is_over():
            self._train_epoch()
            if not self._is_signalled():
                self._notify("on_epoch_end", self.counters.epoch)
                self._end_epoch()
        if not self._is_signalled():  # what sent the signal may not wait for an evaluation
            self._evaluate(is_planned=False)
        if not self._has_saved():
            self._save()
        self.position.enter("save")
        self.communicator.together(self._saver.wait)
        self._notify_committed()
        stopped_by = self._signals.agree(self.communicator)
        if stopped_by:
            raise_stopped(stopped_by, self.counters.global_step, self.run_dir)
        return self._finish()

    def _train_epoch(self) -> None:
        counters, total = self.counters, self._plan.total_steps
        if counters.step_in_epoch == 0:
            counters.epoch += 1
            self._recorder.begin_epoch()
        left = None if total is None else total - counters.global_step
        epoch = self._source.iter_epoch(counters.epoch, first_step=counters.step_in_epoch, max_steps=left)
        self.position.enter("data")
        with closing(epoch) as steps:
            for step in steps:
                result = self._train_step(step)
                if self._is_complete(result):
                    self._close_epoch()
                    counters.step_in_epoch = 0
                self._is_save_due = self._saver.is_due_after_step(counters, is_voted=result.save_votes > 0)
                if self._is_save_due and counters.step_in_epoch and not self._is_over():
                    self._save()
                if self._is_stopping or counters.step_in_epoch == 0:
                    break
                self.position.enter("data")
        if counters.step_in_epoch:
            self._close_epoch()

    def _end_epoch(self) -> None:
        """Evaluate and save where a complete epoch, or the end of the run, asks for it."""
        counters = self.counters
        if counters.step_in_epoch == 0 and counters.epoch and counters.epoch % self.config.eval_every_epochs == 0:
            self._evaluate(is_planned=True)
        is_due = self._is_save_due or self._saver.is_due_after_epoch(counters)
        if is_due and not self._is_over() and not self._has_saved():
            self._save()  # after the evaluation, so that the checkpoint knows of it; at the end _run saves

    def _train_step(self, step: SourceStep) -> StepResult:
        counters, batches = self.counters, step.micro_batches
        self.position.enter("forward and backward")
        tell_step(counters.global_step + 1, is_root=self.topology.is_root)
        lr = self._schedule(counters.samples_seen) * self._patience.factor
        votes = StepVotes(
            num_samples=sum(batch.num_samples for batch in batches),
            num_passes=len(batches),
            stop=self._wants_stop or self._signals.is_set or self._is_out_of_time(),
            end=step.is_last,
            save=self._saver.wants_by_clock(),
        )
        result = self.train_step([self.make_batch(batch) for batch in batches], lr=lr, votes=votes)
        self.position.step = counters.global_step = counters.global_step + 1
        counters.step_in_epoch += 1
        counters.samples_seen += result.num_samples
        self._is_stopping = result.stop_votes > 0
        self._check_step(result, batches)
        self._recorder.add(result)
        is_last = self._is_complete(result) or counters.global_step == self._plan.total_steps
        row = self._recorder.train_row(result, lr, is_last_of_epoch=is_last)
        self._notify("on_step_end", StepReport(counters.global_step, counters.epoch, result, row))
        self._notify_committed()
        every = self.config.check_replicas_every_steps
        if every is not None and counters.global_step % every == 0:
            self._require_equal_replicas(f"step {counters.global_step}")
        self._split.step_done()
        return result

    def _evaluate(self, *, is_planned: bool) -> None:
        """Evaluate unless there is nothing to, or this very step was evaluated already.

        One that is not planned, where a limit ended the run, decides nothing: a run that is continued makes none there.
        """
        if self._evaluator is None:
            return
        if self._eval_row is not None and self._eval_row["global_step"] == self.counters.global_step:
            return
        self.position.enter("evaluate")
        began = time.perf_counter()
        self.average_statistics()
        means = self._evaluator.run(self, self._signature.metric_names, self._plan.sizes.batch_size, self._signals)
        if means is None:  # a signal; the run that goes on makes this evaluation
            self._is_stopping = True
            return
        self._eval_row = self._recorder.eval_row(means)
        self._recorder.pause(time.perf_counter() - began)
        if is_planned:
            self._patience.update(means["loss"])
        self._notify("on_evaluate", self._eval_row)

    def _save(self) -> None:
        self.position.enter("save")
        began = time.perf_counter()
        self.average_statistics()
        state = self._require_equal_replicas(f"step {self.counters.global_step}")
        manifest = self._manifest()
        self.communicator.together(lambda: self._saver.save(state, manifest, self.counters.global_step))
        self._recorder.pause(time.perf_counter() - began)

    def _has_saved(self) -> bool:
        return self._saver.has_saved(self.counters.global_step, self._eval_row)

    def _notify_committed(self) -> None:
        for path in self._saver.take_committed():
            self._notify("on_checkpoint", path)

    # ------------------------------------------------------------------ parts of the loop
    def _is_complete(self, result: StepResult) -> bool:
        return result.end_votes == self.topology.size or self.counters.step_in_epoch == self._plan.steps_per_epoch

    def _is_signalled(self) -> bool:
        """Return, on every rank, whether any rank got a signal, after which the run is over."""
        is_signalled = self._signals.agree(self.communicator) != 0
        self._is_stopping = self._is_stopping or is_signalled
        return is_signalled

    def _is_over(self) -> bool:
        plan, counters = self._plan, self.counters
        if self._is_stopping or self._patience.is_exhausted:
            return True
        if plan.total_steps is not None and counters.global_step >= plan.total_steps:
            return True
        return counters.step_in_epoch == 0 and plan.epochs is not None and counters.epoch >= plan.epochs

    def _is_done(self) -> bool:
        """Return, on every rank, whether the run to continue has finished and left its summary."""
        has_summary = self.communicator.run_on_root(lambda: self._folder and self._folder.read_summary() is not None)
        is_evaluated = self._evaluator is None or (
            self._eval_row is not None and self._eval_row["global_step"] == self.counters.global_step
        )
        return bool(has_summary) and is_evaluated and self._is_over()

    def _say_done(self) -> Summary:
        _log.info("resume: nothing to do, the run ended at step %d", self.counters.global_step)
        return self.communicator.run_on_root(lambda: (self._folder and self._folder.read_summary()) or {})

    def _is_out_of_time(self) -> bool:
        return self.config.max_time_s is not None and self._recorder.elapsed_s() >= self.config.max_time_s

    def _close_epoch(self) -> None:
        counters = self.counters
        self._ledger = self._source.close_epoch(counters.epoch, counters.step_in_epoch, self.communicator.allreduce_sum)

    def _check_step(self, result: StepResult, batches: Sequence[MicroBatch]) -> None:
        step = self.counters.global_step
        if not result.is_finite and self.config.on_nonfinite == "raise":
            raise_nonfinite(self, step, result, batches)
        if result.is_finite and result.weight_sum == 0 and not self._has_warned and self.topology.is_root:
            self._has_warned = True
            _log.warning("step %d: all weights are 0, nothing was updated; further ones are not reported", step)

    def _manifest(self) -> dict[str, Any]:
        data = {**self._source.facts(self.counters.epoch), **self._source.position(self.communicator.allreduce_sum)}
        return {
            "framework": self.framework,
            "versions": installed_versions(self.framework),
            "size": self.topology.size,
            "notes": self._notes,
            "began_from": self._began_from,
            "counters": asdict(self.counters),
            "plan": {**asdict(self._plan), "total_samples": self._plan.total_samples},
            "data": data,
            "patience": self._patience.state(),
            "recorder": self._recorder.sums(),
            "eval_row": self._eval_row,
            "ledgers": {"train": self._ledger, "eval": self._evaluator and self._evaluator.ledger},
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
            "ledger": {"train": self._ledger, "eval": self._evaluator and self._evaluator.ledger},
            **self._recorder.noise_facts(self._plan.sizes.global_batch_size),
            "samples_per_s": self._recorder.samples_per_s(),
            "time_s": self._recorder.run_s(),
            "session": self._recorder.session(),
            **self._split.gather(self.communicator),
        }
        if self._folder is not None:
            self._folder.write_summary(summary)
        self._notify("on_fit_end", summary)
        return summary

    def _notify(self, hook: str, *arguments: Any) -> None:
        self.position.enter("callback")
        for callback in self._callbacks:
            getattr(callback, hook)(self, *arguments)
