"""What an adapter fills: the whole list of hooks, in the order in which the loop calls them.

An adapter owns tensors: it never loops over epochs, picks samples or a learning rate, names a file, averages a
metric or prints.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hvdtrain.data import MicroBatch
from hvdtrain.portable import PortableState
from hvdtrain.position import Position
from hvdtrain.step import StepResult, StepVotes


@dataclass(frozen=True)
class Signature:
    """What the probe learned of a model; equal on all ranks.

    Attributes:
        tensors: Shape and dtype of every weight, buffer and optimizer slot, by neutral name.
        metric_names: Metrics of an evaluation, ``loss`` first.
        notes: What of the model keeps runs from being equal: ``dropout``, ``batch norm``.
        tables: Digest of each lookup table, which no broadcast can carry, by layer.
    """

    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    metric_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    tables: Mapping[str, str] = field(default_factory=dict)

    def facts(self) -> dict[str, object]:
        """Return what ranks must agree on, one entry per tensor, so that a difference names the tensor."""
        tensors = {f"tensor {name}": told for name, told in self.tensors.items()}
        tables = {f"table of layer {name}": told for name, told in self.tables.items()}
        return {"metrics": self.metric_names, "notes": self.notes, **tensors, **tables}


class Hooks(abc.ABC):
    """The contract between the loop and a framework."""

    framework: ClassVar[str]

    #: Where this rank stands; ``train_step`` enters ``reduce`` once its own gradients are complete.
    position: Position

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
    def is_finite(self, batch: Any) -> bool:
        """Return whether loss and gradient of this rank's ``batch`` are finite; reduces and changes nothing."""

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
        """After this call this rank holds ``state``; a tensor without partner is an error that lists both sides.

        A state without slots leaves the optimizer as it is.
        """

    @abc.abstractmethod
    def stop(self) -> None:
        """After this call the trainer holds no framework resource; runs always, also after an error."""
