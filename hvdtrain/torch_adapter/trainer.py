"""The hooks of the trainer in PyTorch; reads side by side with the TensorFlow adapter."""

from __future__ import annotations

from hvdtrain.registry import claim

claim("torch", "TorchTrainer was loaded")

import os
from collections.abc import Mapping, Sequence
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase

from hvdtrain.data import MicroBatch, map_structure
from hvdtrain.errors import AdapterError, ConfigError
from hvdtrain.hooks import Signature
from hvdtrain.metrics import require_elements, require_own_elements
from hvdtrain.portable import PortableState, require_same_trained
from hvdtrain.settings import FOR_HOROVOD, FOR_HOROVOD_ON_CPU, FOR_TORCH, settle
from hvdtrain.step import STEP_FIELDS, StepResult, StepVotes, clip_factor
from hvdtrain.threads import require_same_size, threads_per_rank
from hvdtrain.torch_adapter import state as portable_state
from hvdtrain.torch_adapter.broadcast import broadcast_slots, broadcast_tensors
from hvdtrain.torch_adapter.optimizers import build_optimizer, build_slots, spare_the_compiler
from hvdtrain.torch_adapter.precision import compiled, computed_in, refuse_narrow, widened
from hvdtrain.torch_adapter.reduction import UsageHooks, release, wrap
from hvdtrain.trainer import Trainer


class TorchTrainer(Trainer):
    """Trains a ``torch.nn.Module``."""

    framework = "torch"

    def start(self) -> None:
        """After this call Horovod runs, the device of ``local_rank`` and the threads per rank are set."""
        settle({**FOR_HOROVOD, **FOR_TORCH, **({} if hvd.nccl_built() else FOR_HOROVOD_ON_CPU)})
        hvd.init()
        require_same_size(hvd.rank(), hvd.size(), self.topology)
        threads = threads_per_rank(self.topology, os.environ)
        if threads is not None:
            torch.set_num_threads(threads)
        self._device = torch.device("cpu")
        if torch.cuda.is_available():
            self._device = torch.device("cuda", self.topology.local_rank)
            torch.cuda.set_device(self._device)
        torch.manual_seed(self.config.seed)

    def prepare(self, probe: MicroBatch) -> Signature:
        """After this call the model is built, has been run once on ``probe``, and its optimizer is wrapped."""
        # Wrapping is collective in Horovod, so what can fail on one rank alone is settled before.
        metric_names, optimizer = self.communicator.together(lambda: self._build(self.make_batch(probe)))
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._trained = _trained(self._names)
        # A native optimizer may leave parameters out: their gradients are neither reduced nor counted.
        self._usage = UsageHooks(
            (p for group in optimizer.param_groups for p in group["params"]), keeps_norms=self.config.noise_scale
        )
        self._optimizer = wrap(optimizer, self._names, self.config.compression)
        if self.optimizer is None:
            build_slots(self.config, self._optimizer)
        return Signature(self.export_state().signature(), metric_names, _notes(self.built_model))

    def broadcast_state(self) -> None:
        """After this call every rank holds the root's parameters, buffers and optimizer slots."""
        tensors, _ = portable_state.model_tensors(self.built_model)
        broadcast_tensors(tensors)
        broadcast_slots(self._optimizer, self._names, self.communicator)

    def make_batch(self, micro_batch: MicroBatch) -> Any:
        """Return the batch as tensors on this rank's device; structure and dtypes stay."""
        return map_structure(micro_batch.data, lambda array: torch.as_tensor(array).to(self._device))

    def train_step(self, micro_batches: Sequence[Any], *, lr: float, votes: StepVotes) -> StepResult:
        """After this call every rank has made the same update, from one reduction."""
        nominal = self._plan.sizes.global_batch_size
        require_same_trained("train_step", self._trained, _trained(self._names))
        self.built_model.train()
        self._seed_dropout()
        num_passes = max(len(micro_batches), 1)
        self._optimizer.set_backward_passes_per_step(num_passes)
        self._usage.begin_step(num_passes)
        loss_sum = weight_sum = torch.zeros((), dtype=torch.float64)
        for batch in micro_batches:
            values, weights = self._losses(batch)
            weighted = values * weights
            loss_sum = loss_sum + weighted.detach().double().sum()
            weight_sum = weight_sum + weights.double().sum()
            if weighted.requires_grad:
                # Dividing by a number known everywhere keeps sums in range.
                (weighted.sum() / nominal).backward()  # type: ignore[no-untyped-call]
            self._usage.end_pass()
            self.position.moved()
        if not micro_batches:
            self._usage.end_pass()
        vector = votes.vector(float(loss_sum), float(weight_sum), nominal * self._usage.own_norm())
        self.position.enter("reduce")
        sums, used = self._reduce(vector)
        self.position.enter("update")
        return self._update(sums, used, lr, nominal)

    def is_finite(self, batch: Any) -> bool:
        """Return whether loss and gradient of this rank's ``batch`` are finite; reduces and changes nothing."""
        values, weights = self._losses(batch)
        total = (values * weights).sum()
        gradients: Sequence[torch.Tensor | None] = ()
        if total.requires_grad:  # autograd.grad runs no hook of a parameter, and so no reduction
            gradients = torch.autograd.grad(total, self._usage.parameters, allow_unused=True)
        return all(bool(part.isfinite().all()) for part in (total, *gradients) if part is not None)

    def average_statistics(self) -> None:
        """After this call running statistics are the mean over ranks, and other buffers the root's."""
        statistics = _running_statistics(self.built_model)
        for name, tensor in statistics.items():
            hvd.allreduce_(tensor, op=hvd.Average, name=f"statistics.{name}")
        buffers = dict(self.built_model.named_buffers())
        broadcast_tensors({n: b for n, b in buffers.items() if n not in statistics})

    @torch.no_grad()
    def eval_step(self, batch: Any) -> dict[str, tuple[float, float]]:
        """Return ``{name: (weighted sum, sum of weights)}`` of loss and metrics in evaluation mode."""
        self.built_model.eval()
        found = {"loss": self._losses(batch)}
        for name, value in (self._metrics(self.built_model, batch) if self._metrics else {}).items():
            found[name] = _elements(value)
        return {
            name: ((values.double() * weights.double()).sum().item(), weights.double().sum().item())
            for name, (values, weights) in found.items()
        }

    def export_state(self) -> PortableState:
        """Return weights, buffers and optimizer slots under neutral names; arrays may share memory."""
        return portable_state.export_state(self.built_model, self._optimizer, self._names)

    @torch.no_grad()
    def import_state(self, state: PortableState) -> None:
        """After this call this rank holds ``state``."""
        is_native = self.optimizer is not None
        portable_state.import_state(state, self.built_model, self._optimizer, self._names, adopts_slots=is_native)

    def stop(self) -> None:
        """After this call the trainer holds no hook on the model; runs always."""
        if hasattr(self, "_usage"):
            self._usage.remove()
        if hasattr(self, "_optimizer"):
            release(self._optimizer)

    # ------------------------------------------------------------------ parts of the hooks
    def _build(self, batch: Any) -> tuple[tuple[str, ...], torch.optim.Optimizer]:
        self.built_model = _model_of(self.model).to(self._device)
        _refuse_sync_batch_norm(self.built_model)
        precision = self.config.precision
        self._loss = computed_in(precision, self.loss, self._device)
        self._metrics = self.metrics and computed_in(precision, self.metrics, self._device)
        metric_names = self._probe(batch)
        if self.config.compile:
            self._loss = computed_in(precision, compiled(self.loss, self._device), self._device)
        else:
            spare_the_compiler()
        refuse_narrow(self.built_model)
        self._names: dict[torch.Tensor, str] = {p: name for name, p in self.built_model.named_parameters()}
        return metric_names, self._native_optimizer() or build_optimizer(self.config, self._names)

    def _probe(self, batch: Any) -> tuple[str, ...]:
        with torch.no_grad(), torch.random.fork_rng():
            before = {name: tensor.clone() for name, tensor in _built_tensors(self.built_model).items()}
            self.built_model.eval()
            size = _leading_size(batch)
            losses = self._loss(self.built_model, batch)
            _require("loss", losses, size)
            if self.collate is None and size > 1:  # what a collate made may not be cut
                first = self._loss(self.built_model, map_structure(batch, lambda tensor: tensor[:1]))
                require_own_elements("loss", _elements(losses)[0].shape, _elements(first)[0].shape)
            metrics = self._metrics(self.built_model, batch) if self._metrics else {}
            for name, value in metrics.items():
                _require(f"metric {name!r}", value, size)
            for name, tensor in _built_tensors(self.built_model).items():
                if name in before:
                    tensor.copy_(before[name])
        return ("loss", *metrics)

    def _native_optimizer(self) -> torch.optim.Optimizer | None:
        if self.optimizer is None or isinstance(self.optimizer, torch.optim.Optimizer):
            optimizer = self.optimizer
        else:
            optimizer = self.optimizer(self.built_model)
        return optimizer and _checked(optimizer, self._names)

    def _losses(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return _elements(self._loss(self.built_model, batch))

    def _seed_dropout(self) -> None:
        key = (self.config.seed, self.topology.rank, self.counters.global_step)
        torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))

    def _reduce(self, vector: list[float]) -> tuple[list[float], list[bool]]:
        """Sum gradients and step tensor over ranks, in one cycle; return the sums and who was used."""
        tensor = torch.tensor([*vector, *self._usage.used()], dtype=torch.float64)
        handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="hvdtrain.step")
        self._optimizer.synchronize()
        sums = hvd.synchronize(handle).tolist()
        return sums, [count > 0 for count in sums[len(STEP_FIELDS) :]]

    @torch.no_grad()
    def _update(self, sums: list[float], used: list[bool], lr: float, nominal: int) -> StepResult:
        """Normalise, clip and apply; leave alone what no rank used, as one process would."""
        weight_sum = sums[STEP_FIELDS.index("weight_sum")]
        gradients = []
        for parameter, is_used in zip(self._usage.parameters, used, strict=True):
            if not is_used:
                parameter.grad = None
            elif parameter.grad is not None:
                gradients.append(parameter.grad)
        scale = nominal / weight_sum if weight_sum else 0.0
        norms = torch._foreach_norm(gradients) if gradients else [torch.zeros(())]
        grad_norm = torch.linalg.vector_norm(torch.stack(norms)).item() * scale
        result = StepResult.from_sums(sums, grad_norm, self._trace(used, norms, scale))
        if weight_sum and result.is_finite:
            if gradients:
                torch._foreach_mul_(gradients, scale * clip_factor(grad_norm, self.config.clip_norm))
            for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
                group["lr"] = lr if self.optimizer is None else rate * lr / self.config.learning_rate
            with self._optimizer.skip_synchronize():
                self._optimizer.step()
        self.built_model.zero_grad()
        return result

    def _trace(self, used: list[bool], norms: Sequence[torch.Tensor], scale: float) -> dict[str, float]:
        if self.trace_every_steps is None:
            return {}
        held = [p for p, is_used in zip(self._usage.parameters, used, strict=True) if is_used]
        return {self._names[p]: norm.item() * scale for p, norm in zip(held, norms, strict=True)}


def _model_of(model: Any) -> torch.nn.Module:
    built = model if isinstance(model, torch.nn.Module) else model()
    if not isinstance(built, torch.nn.Module):
        raise ConfigError(f"prepare: the model must be a torch.nn.Module, got {type(built).__name__}.")
    return built


def _trained(names: Mapping[torch.Tensor, str]) -> list[str]:
    return [name for parameter, name in names.items() if parameter.requires_grad]


def _notes(model: torch.nn.Module) -> tuple[str, ...]:
    kinds = {"batch norm": _NormBase, "dropout": torch.nn.modules.dropout._DropoutNd}
    modules = list(model.modules())
    return tuple(note for note, kind in kinds.items() if any(isinstance(module, kind) for module in modules))


def _built_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that exist already; a lazy module has none before its first batch."""
    tensors = model.state_dict(keep_vars=True)
    return {n: t.data for n, t in tensors.items() if not torch.nn.parameter.is_lazy(t)}


def _refuse_sync_batch_norm(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm | hvd.SyncBatchNorm):
            raise AdapterError(
                f"prepare: SyncBatchNorm reduces inside the forward pass, which a rank with an empty share does not "
                f"make, got one at {name!r}. Use BatchNorm: its running statistics are averaged over ranks."
            )


def _checked(optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"prepare: optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}.")
    if isinstance(optimizer, torch.optim.SparseAdam | torch.optim.LBFGS):
        raise AdapterError(
            f"prepare: {type(optimizer).__name__} cannot be used with reduced gradients: LBFGS evaluates the loss "
            "many times a step and SparseAdam wants sparse gradients, which are reduced dense. Use Adam or SGD."
        )
    held = [p for group in optimizer.param_groups for p in group["params"]]
    twice = sorted({names.get(p, "unnamed") for i, p in enumerate(held) if any(p is q for q in held[:i])})
    if twice:
        raise ConfigError(f"prepare: a parameter may stand in one group once, got twice: {', '.join(twice)}.")
    foreign = [tuple(p.shape) for p in held if p not in names]
    if foreign:
        raise ConfigError(f"prepare: the optimizer may hold parameters of the model alone, got others of {foreign}.")
    return optimizer


def _running_statistics(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    found = {}
    for prefix, module in model.named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats:
            for name in ("running_mean", "running_var"):
                if (tensor := getattr(module, name)) is not None:
                    found[f"{prefix}.{name}" if prefix else name] = tensor
    return found


def _elements(value: Any) -> tuple[torch.Tensor, torch.Tensor]:
    values, weights = value if isinstance(value, tuple) else (value, None)
    values = widened(values)
    return values, torch.ones_like(values) if weights is None else weights.to(values.dtype)


def _require(where: str, value: Any, num_samples: int) -> None:
    parts = value if isinstance(value, tuple) else (value,)
    require_elements(where, [getattr(part, "shape", None) for part in parts], num_samples, 'reduction="none"')


def _leading_size(batch: Any) -> int:
    sizes: list[int] = []
    map_structure(batch, lambda tensor: sizes.append(len(tensor)))
    return sizes[0]
