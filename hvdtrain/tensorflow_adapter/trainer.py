"""The hooks of the trainer in TensorFlow; reads side by side with the PyTorch adapter."""

from __future__ import annotations

from hvdtrain.registry import claim

claim("tensorflow", "TensorFlowTrainer was loaded")

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from hvdtrain.quiet import stderr_to_log

with stderr_to_log("tensorflow"):
    import horovod.tensorflow as hvd
    import keras
    import numpy as np
    import tensorflow as tf

from hvdtrain.data import MicroBatch
from hvdtrain.errors import AdapterError, ConfigError
from hvdtrain.hooks import Signature
from hvdtrain.metrics import require_own_elements
from hvdtrain.portable import PortableState, require_same_trained
from hvdtrain.settings import FOR_HOROVOD, FOR_HOROVOD_ON_CPU, settle
from hvdtrain.step import STEP_FIELDS, StepResult, StepVotes
from hvdtrain.tensorflow_adapter import state as portable_state
from hvdtrain.tensorflow_adapter.broadcast import broadcast_variables
from hvdtrain.tensorflow_adapter.model import BoundModel, Scope, elements, leading_open, require
from hvdtrain.tensorflow_adapter.optimizers import Canonical, build_optimizer
from hvdtrain.tensorflow_adapter.precision import layers_computing_in, refuse_compile, refuse_narrow, require_precision
from hvdtrain.tensorflow_adapter.reduction import reduce_gradients, wrap
from hvdtrain.threads import require_same_size, threads_per_rank
from hvdtrain.trainer import Trainer


class TensorFlowTrainer(Trainer):
    """Trains a Keras 3 model on the TensorFlow backend."""

    framework = "tensorflow"

    def start(self) -> None:
        """After this call Horovod runs, the device of ``local_rank`` and the threads per rank are set."""
        settle({**FOR_HOROVOD, **({} if hvd.nccl_built() else FOR_HOROVOD_ON_CPU)})
        hvd.init()
        require_same_size(hvd.rank(), hvd.size(), self.topology)
        threads = threads_per_rank(self.topology, os.environ) or int(os.environ["OMP_NUM_THREADS"])
        _set_threads(threads)
        gpus = tf.config.list_physical_devices("GPU")
        if gpus:
            tf.config.set_visible_devices(gpus[self.topology.local_rank], "GPU")
        keras.utils.set_random_seed(self.config.seed)

    def prepare(self, probe: MicroBatch) -> Signature:
        """After this call the model is built, has been run once on ``probe``, and its optimizer is wrapped."""
        refuse_compile(self.config.compile)
        batch = self.make_batch(probe)
        with layers_computing_in(self.config.precision):  # some layers make others at their first batch
            self.built_model = _model_of(self.model)
            metric_names = self._probe(batch)
        require_precision(self.config.precision, self.built_model)
        self._loss = Scope(self.built_model, self.loss)
        self._metrics = Scope(self.built_model, self.metrics) if self.metrics else None
        self._named = portable_state.NamedVariables(self.built_model, self.names)
        refuse_narrow(self._named.variables)
        self._variables = list(self.built_model.trainable_variables)
        self._trained = self._names_of_trained()
        self._optimizer = wrap(self._native_optimizer() or build_optimizer(self.config))
        self._rate = float(self._optimizer.learning_rate)
        self._optimizer.build(self._variables)
        self._build_functions(batch)
        return Signature(
            self.export_state().signature(),
            metric_names,
            _notes(self.built_model),
            portable_state.table_digests(self.built_model),
        )

    def broadcast_state(self) -> None:
        """After this call every rank holds the root's parameters, buffers and optimizer slots."""
        variables = {name: variable.value for name, variable in self._named.variables.items()}
        slots = {f"slot.{i}": variable.value for i, variable in enumerate(self._optimizer.variables)}
        broadcast_variables({**variables, **slots})
        if portable_state.finalize_tables(self.built_model):
            self._functions.clear()

    def make_batch(self, micro_batch: MicroBatch) -> Any:
        """Return the batch as tensors on this rank's device; structure and dtypes stay."""
        return tf.nest.map_structure(tf.convert_to_tensor, micro_batch.data)

    def train_step(self, micro_batches: Sequence[Any], *, lr: float, votes: StepVotes) -> StepResult:
        """After this call every rank has made the same update, from one reduction."""
        if self.counters.step_in_epoch == 0:  # asking Keras takes about a millisecond
            require_same_trained("train_step", self._trained, self._names_of_trained())
        self._seed_dropout()
        held = None
        for batch in micro_batches:
            gradients = self._traced("gradients", self._gradients_of, batch)
            held = gradients(batch) if held is None else self._add(batch, held)
            self.position.moved()
        self.position.enter("reduce")
        rate = lr if self.optimizer is None else self._rate * lr / self.config.learning_rate
        tail = tf.constant(votes.tail(), tf.float64)
        sums, grad_norm, norms = self._apply(held or self._nothing(), tf.constant(rate, tf.float32), tail)
        traced = dict(zip(self._used_names, norms.numpy().tolist(), strict=True)) if self.trace_every_steps else {}
        return StepResult.from_sums(sums.numpy().tolist(), float(grad_norm), traced)

    def is_finite(self, batch: Any) -> bool:
        """Return whether loss and gradient of this rank's ``batch`` are finite; reduces and changes nothing."""
        with tf.GradientTape() as tape:
            values, weights = elements(self._loss(batch, training=True), self.built_model)
            total = tf.reduce_sum(values * weights)
        gradients = tape.gradient(total, [variable.value for variable in self._variables])
        parts = [tf.convert_to_tensor(part) for part in (total, *gradients) if part is not None]
        return all(bool(tf.reduce_all(tf.math.is_finite(part))) for part in parts)

    def average_statistics(self) -> None:
        """After this call running statistics are the mean over ranks, and other buffers the root's."""
        statistics = portable_state.running_statistics(self.built_model)
        for index, variable in enumerate(statistics):
            variable.assign(hvd.allreduce(tf.identity(variable.value), op=hvd.Average, name=f"statistics.{index}"))
        done = {id(variable) for variable in [*statistics, *self._variables]}
        others = {n: v.value for n, v in self._named.variables.items() if id(v) not in done}
        broadcast_variables(others)

    def eval_step(self, batch: Any) -> dict[str, tuple[float, float]]:
        """Return ``{name: (weighted sum, sum of weights)}`` of loss and metrics in evaluation mode."""
        sums = self._traced("evaluate", self._evaluate_batch, batch)(batch)
        return {name: (float(total), float(weight)) for name, (total, weight) in sums.items()}

    def export_state(self) -> PortableState:
        """Return weights, buffers and optimizer slots under neutral names."""
        return portable_state.export_state(self._named, self._optimizer)

    def import_state(self, state: PortableState) -> None:
        """After this call this rank holds ``state``."""
        portable_state.import_state(state, self._named, self._optimizer)
        if portable_state.finalize_tables(self.built_model):
            self._functions.clear()

    def stop(self) -> None:
        """After this call the trainer holds no traced function; runs always."""
        self._functions: dict[Any, Any] = {}

    # ------------------------------------------------------------------ parts of the hooks
    def _probe(self, batch: Any) -> tuple[str, ...]:
        before = [(variable, variable.numpy()) for variable in self.built_model.variables]
        bound = BoundModel(self.built_model, training=False)
        size = len(tf.nest.flatten(batch)[0])
        losses = self.loss(bound, batch)
        require("loss", losses, size)
        if self.collate is None and size > 1:  # what a collate made may not be cut
            first = self.loss(bound, tf.nest.map_structure(lambda tensor: tensor[:1], batch))
            require_own_elements("loss", *(tf.nest.flatten(value)[0].shape for value in (losses, first)))
        metrics = self.metrics(bound, batch) if self.metrics else {}
        for name, value in metrics.items():
            require(f"metric {name!r}", value, size)
        for variable, value in before:
            variable.assign(value)
        return ("loss", *metrics)

    def _native_optimizer(self) -> keras.optimizers.Optimizer | None:
        if self.optimizer is None or isinstance(self.optimizer, keras.optimizers.Optimizer):
            optimizer = self.optimizer
        else:
            optimizer = self.optimizer(self.built_model)
        return optimizer and _checked(optimizer)

    def _build_functions(self, batch: Any) -> None:
        """Trace which parameters the loss uses, and make the functions of a step."""
        self._functions = {}
        self._is_used = [True] * len(self._variables)
        self._traced("gradients", self._gradients_of, batch).get_concrete_function()
        used = self._used()
        self._used_names = [self._named.name_of[id(variable)] for variable in used]
        self._named.unused = {self._named.name_of[id(v)] for v in self._variables} - set(self._used_names)
        self._apply = tf.function(self._reduce_and_update, autograph=False)
        # XLA makes one pass over memory of the dozen that the operations of an update make.
        compiles = isinstance(self._optimizer, Canonical) and self._optimizer.is_elementwise
        self._update = tf.function(self._update_variables, autograph=False, jit_compile=compiles or None)

    def _traced(self, name: str, body: Callable[..., Any], batch: Any, *more: Any) -> Any:
        """Return ``body`` traced once for batches of this form, however many samples they hold.

        Args:
            name: Of the body.
            body: Takes the batch, then what has the form of ``more``.
            batch: A batch.
            more: Tensors of fixed shape.
        """
        form = tf.nest.map_structure(leading_open, batch)
        key = (name, repr(form))
        if key not in self._functions:
            fixed = tf.nest.map_structure(tf.TensorSpec.from_tensor, list(more))
            self._functions[key] = tf.function(body, input_signature=[form, *fixed])
        return self._functions[key]

    def _gradients_of(self, batch: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return loss and weight sum of one micro-batch, and the gradients of the parameters that the loss uses."""
        nominal = self._plan.sizes.global_batch_size
        with tf.GradientTape() as tape:
            values, weights = elements(self._loss(batch, training=True), self.built_model)
            weighted = values * weights
            # Dividing by a number known everywhere keeps sums in range.
            total = tf.reduce_sum(weighted) / nominal
        gradients = tape.gradient(total, [variable.value for variable in self._variables])
        self._is_used = [gradient is not None for gradient in gradients]
        sums = [tf.reduce_sum(tf.cast(part, tf.float64)) for part in (weighted, weights)]
        return tf.stack(sums), [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]

    def _nothing(self) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return what a rank with an empty share brings: as large as the gradients, so made where it is wanted."""
        return tf.zeros(2, tf.float64), [tf.zeros(v.shape, v.dtype) for v in self._used()]

    def _add(self, batch: Any, held: tuple[tf.Tensor, list[tf.Tensor]]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return what is held plus that of one more micro-batch; TensorFlow adds into the new gradients' memory."""
        return self._traced("add", self._gradients_added, batch, *held)(batch, *held)  # type: ignore[no-any-return]

    def _gradients_added(
        self, batch: Any, sums: tf.Tensor, gradients: list[tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        more_sums, more = self._gradients_of(batch)
        return sums + more_sums, [held + gradient for held, gradient in zip(gradients, more, strict=True)]

    def _reduce_and_update(
        self, held: tuple[tf.Tensor, list[tf.Tensor]], lr: tf.Tensor, tail: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Sum over ranks, normalise, clip and apply; leave alone what the loss does not use."""
        own_sums, gradients = held
        vector = tf.concat([own_sums, tail, self._share_norm(gradients, tail)], axis=0)
        sums = hvd.allreduce(vector, op=hvd.Sum, name="hvdtrain.step")
        reduced = reduce_gradients(self._optimizer, gradients, self._used(), self.config.compression)
        weight_sum = sums[STEP_FIELDS.index("weight_sum")]
        scale = tf.where(weight_sum != 0, self._plan.sizes.global_batch_size / weight_sum, 0.0)
        grad_norm = tf.cast(tf.linalg.global_norm(reduced), tf.float64) * scale
        factor = scale
        if self.config.clip_norm is not None:
            factor *= tf.minimum(tf.ones_like(scale), self.config.clip_norm / (grad_norm + 1e-6))
        is_finite = tf.math.is_finite(grad_norm) & tf.math.is_finite(sums[0])

        def update() -> tf.Tensor:
            self._update(reduced, factor, lr)
            return tf.constant(True)

        tf.cond(is_finite & (weight_sum != 0), update, lambda: tf.constant(False))
        norms = tf.stack([tf.cast(tf.norm(g), tf.float64) * scale for g in reduced]) if self.trace_every_steps else sums
        return sums, grad_norm, norms

    def _share_norm(self, gradients: list[tf.Tensor], tail: tf.Tensor) -> tf.Tensor:
        """Return the last field of the step tensor, shape ``[1]``, from this rank's gradients before the reduction."""
        if not self.config.noise_scale:
            return tf.zeros(1, tf.float64)
        own_norm = tf.cast(tf.linalg.global_norm(gradients), tf.float64) * self._plan.sizes.global_batch_size
        num_samples = tail[STEP_FIELDS.index("num_samples") - 2]
        return tf.reshape(own_norm**2 / tf.maximum(num_samples, 1.0), [1])

    def _update_variables(self, reduced: list[tf.Tensor], factor: tf.Tensor, lr: tf.Tensor) -> None:
        self._optimizer.learning_rate = lr
        gradients = [gradient * tf.cast(factor, gradient.dtype) for gradient in reduced]
        self._optimizer.apply_gradients(list(zip(gradients, self._used(), strict=True)))

    def _used(self) -> list[keras.Variable]:
        return [v for v, is_used in zip(self._variables, self._is_used, strict=True) if is_used]

    def _names_of_trained(self) -> list[str]:
        return [self._named.name_of[id(variable)] for variable in self.built_model.trainable_variables]

    def _evaluate_batch(self, batch: Any) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        found = {"loss": elements(self._loss(batch, training=False), self.built_model)}
        for name, value in (self._metrics(batch, training=False) if self._metrics else {}).items():
            found[name] = elements(value)
        wide = {n: (tf.cast(v, tf.float64), tf.cast(w, tf.float64)) for n, (v, w) in found.items()}
        return {n: (tf.reduce_sum(v * w), tf.reduce_sum(w)) for n, (v, w) in wide.items()}

    def _seed_dropout(self) -> None:
        for index, variable in enumerate(portable_state.seed_generators(self.built_model)):
            key = (self.config.seed, self.topology.rank, self.counters.global_step, index)
            variable.assign(np.random.SeedSequence(key).generate_state(2, np.uint32))


def _model_of(model: Any) -> keras.Model:
    built = model if isinstance(model, keras.Model) else model()
    if not isinstance(built, keras.Model):
        raise ConfigError(f"prepare: the model must be a keras.Model, got {type(built).__name__}.")
    return built


def _notes(model: keras.Model) -> tuple[str, ...]:
    kinds = {
        "batch norm": keras.layers.BatchNormalization,
        "dropout": keras.layers.Dropout | keras.layers.SpatialDropout2D | keras.layers.GaussianDropout,
    }
    layers = list(model._flatten_layers())
    return tuple(note for note, kind in kinds.items() if any(isinstance(layer, kind) for layer in layers))


def _set_threads(threads: int) -> None:
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError as error:
        raise ConfigError(
            f"start: TensorFlow takes {threads} threads per rank before its first operation alone, and a model was "
            "built before fit. Pass the function that builds it, model=build_model, or set OMP_NUM_THREADS."
        ) from error


def _checked(optimizer: Any) -> keras.optimizers.Optimizer:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigError(f"prepare: optimizer must be a keras.optimizers.Optimizer, got {type(optimizer).__name__}.")
    if isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        raise AdapterError(
            "prepare: a native optimizer needs a constant rate, got a LearningRateSchedule, which counts steps and "
            "not samples. Set the course in TrainConfig (decay, warmup_epochs)."
        )
    return optimizer
