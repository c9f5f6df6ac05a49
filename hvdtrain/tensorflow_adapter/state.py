"""Portable state of a Keras model and optimizer: names, export, import; loads without Horovod."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdtrain.errors import ConfigError
from hvdtrain.portable import Layout, PortableState, apply_names, from_keras, require_same_tensors

#: Named by rule in no broadcast, no file and no comparison: the state of Keras's random seeds.
_SEED_STATE = "seed_generator_state"


class NamedVariables:
    """The variables of a Keras model under neutral names."""

    def __init__(self, model: keras.Model, names: Mapping[str, str]) -> None:
        """Walk the layers of a built model; ``names`` are the job's own."""
        _require_distinct_paths(model)
        found: dict[str, tuple[keras.Variable, str, Layout]] = {}
        seen: set[int] = set()
        for variable, prefix, layer_class in _walk(model, "", seen):
            suffix, layout = from_keras(layer_class, variable.name)
            found[variable.path] = (variable, f"{prefix}{suffix}", layout)
        for variable in model.variables:
            if id(variable) not in seen and variable.name != _SEED_STATE:
                found[variable.path] = (variable, variable.path.replace("/", "."), Layout())
        neutral = apply_names({path: name for path, (_, name, _) in found.items()}, names)
        self.variables = {neutral[path]: variable for path, (variable, _, _) in found.items()}
        self.layouts = {neutral[path]: layout for path, (_, _, layout) in found.items()}
        #: Parameters that the loss does not use: no update counts for them.
        self.unused: set[str] = set()
        self.name_of = {id(variable): name for name, variable in self.variables.items()}

    def slots(self, optimizer: Any) -> Iterator[tuple[str, Any, Layout]]:
        """Yield ``(portable name, variable, layout)`` of the optimizer's slots."""
        made: Mapping[str, list[Any]] = getattr(optimizer, "slots", {})
        for slot, variables in made.items():
            for variable, owner in zip(variables, optimizer._trainable_variables, strict=True):
                name = self.name_of[id(owner)]
                yield f"{name}/{slot}", variable, self.layouts[name]

    def native_slots(self, optimizer: Any) -> Iterator[tuple[str, Any]]:
        """Yield ``(portable name, variable)`` of all that a native optimizer keeps, in Keras's layout.

        Keras's own paths hold numbers that count how many models and optimizers the process has made before, and
        are not always distinct.
        """
        owners = {f"{v.path.replace('/', '_')}_": self.name_of[id(v)] for v in optimizer._trainable_variables}
        for index, variable in enumerate(optimizer.variables):
            prefix = max((p for p in owners if variable.name.startswith(p)), key=len, default="")
            owned = f"/{owners[prefix]}/{variable.name.removeprefix(prefix)}" if prefix else ""
            yield f"native/{index}{owned}", variable

    def shapes(self, optimizer: Any) -> dict[str, tuple[int, ...]]:
        """Return the portable shape of every weight and slot."""
        state = export_state(self, optimizer)
        return {name: array.shape for name, array in {**state.weights, **state.slots}.items()}


def export_state(named: NamedVariables, optimizer: Any) -> PortableState:
    """Return weights and slots as NumPy arrays in the neutral layout, in the memory of the model where they can be."""
    weights = {name: named.layouts[name].to_portable(_values(v)) for name, v in named.variables.items()}
    slots = {name: layout.to_portable(_values(v)) for name, v, layout in named.slots(optimizer)}
    counted = getattr(optimizer, "definition", None)
    if counted is None:
        slots |= {name: _values(v) for name, v in named.native_slots(optimizer)}
    elif counted.name != "sgd":
        for variable in optimizer._trainable_variables:
            name = named.name_of[id(variable)]
            count = 0 if name in named.unused else optimizer.iterations.numpy()
            slots[f"{name}/step"] = np.array(count, dtype=np.float32)
    return PortableState(weights, slots)


def import_state(state: PortableState, named: NamedVariables, optimizer: Any) -> None:
    """Assign a portable state to model and optimizer; a tensor without partner is refused."""
    given = {name: array.shape for name, array in {**state.weights, **state.slots}.items()}
    counts = [name for name in given if name.endswith("num_batches_tracked")]
    have = named.shapes(optimizer)
    if not state.slots:
        have = {name: have[name] for name in named.variables}
    require_same_tensors("import_state", have, given, optional=counts)
    _assign_weights(state, named)
    for name, variable, layout in named.slots(optimizer) if state.slots else ():
        variable.assign(layout.from_portable(state.slots[name], tuple(variable.shape)))
    for name, variable in named.native_slots(optimizer):
        if name in state.slots:
            variable.assign(state.slots[name])
    counted = [int(array) for name, array in state.slots.items() if name.endswith("/step")]
    if counted:
        optimizer.iterations.assign(max(counted))


def load_weights(model: keras.Model, state: PortableState, names: Mapping[str, str]) -> None:
    """Assign the weights of a portable state to a built model; a tensor without partner is refused."""
    named = NamedVariables(model, names)
    shapes = {name: named.layouts[name].to_portable(np.asarray(v)).shape for name, v in named.variables.items()}
    given = {name: array.shape for name, array in state.weights.items()}
    counts = [name for name in given if name.endswith("num_batches_tracked")]
    require_same_tensors("load_weights", shapes, given, optional=counts)
    _assign_weights(state, named)
    finalize_tables(model)


def running_statistics(model: keras.Model) -> list[keras.Variable]:
    """Return the moving means and variances of all batch normalisations."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    return [variable for layer in layers for variable in (layer.moving_mean, layer.moving_variance)]


def table_digests(model: keras.Model) -> dict[str, str]:
    """Return a digest of each table that a layer keeps: tables are no variables, so ranks compare them."""
    tables = {layer.name: _table_of(layer) for layer in model._flatten_layers()}
    return {name: hashlib.sha256(repr(t).encode()).hexdigest() for name, t in tables.items() if t is not None}


def finalize_tables(model: keras.Model) -> bool:
    """Let adapted normalisations compute with the statistics that their variables hold now; return whether any did.

    They keep them as tensors that a traced function holds as constants: traces made before are out of date.
    """
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Normalization)]
    adapted = [layer for layer in layers if layer.input_mean is None and layer.built]
    for layer in adapted:
        layer.finalize_state()
    return bool(adapted)


def _assign_weights(state: PortableState, named: NamedVariables) -> None:
    for name, variable in named.variables.items():
        variable.assign(named.layouts[name].from_portable(state.weights[name], tuple(variable.shape)))


def _table_of(layer: keras.Layer) -> object | None:
    """Return what a layer looks up or computes with and keeps outside of its variables."""
    if hasattr(layer, "get_vocabulary"):
        weights = getattr(layer, "idf_weights", None)
        return layer.get_vocabulary(), None if weights is None else np.asarray(weights).tolist()
    if isinstance(layer, keras.layers.Normalization) and layer.input_mean is not None:
        return np.asarray(layer.input_mean).tolist(), np.asarray(layer.input_variance).tolist()
    if isinstance(layer, keras.layers.Discretization):
        return tuple(np.asarray(layer.bin_boundaries).tolist())
    return None


def seed_generators(model: keras.Model) -> list[keras.Variable]:
    """Return the state variables of the model's random seeds, in a fixed order."""
    return [variable for variable in model.variables if variable.name == _SEED_STATE]


def _require_distinct_paths(model: keras.Model) -> None:
    paths = [variable.path for variable in model.variables if variable.name != _SEED_STATE]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        raise ConfigError(
            f"names: each weight needs a path of its own, got twice: {', '.join(twice)}. Give the weights, or their "
            "layers, different names."
        )


def _walk(layer: keras.Layer, prefix: str, seen: set[int]) -> Iterator[tuple[keras.Variable, str, str]]:
    """Yield ``(variable, dotted prefix, layer class)``; attribute names lead in subclassed models."""
    own = [*layer._trainable_variables, *layer._non_trainable_variables]
    for variable in own:
        if id(variable) not in seen and variable.name != _SEED_STATE:
            seen.add(id(variable))
            yield variable, prefix, type(layer).__name__
    for name, child in _children(layer):
        yield from _walk(child, f"{prefix}{name}.", seen)


def _children(layer: keras.Layer) -> Iterator[tuple[str, keras.Layer]]:
    if isinstance(layer, keras.Sequential) or type(layer).__name__ == "Functional":
        for child in layer.layers:
            yield child.name, child
        return
    for name, value in vars(layer).items():
        if not name.startswith("_"):
            yield from _layers_in(name, value)


def _layers_in(name: str, value: object) -> Iterator[tuple[str, keras.Layer]]:
    if isinstance(value, keras.Layer):
        yield name, value
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _layers_in(f"{name}.{index}", part)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _layers_in(f"{name}.{key}", part)


def _values(variable: Any) -> Any:
    """Return the values of a variable, read-only, in its own memory; when it changes later, it takes other memory."""
    tensor = tf.convert_to_tensor(variable)
    try:
        return np.asarray(memoryview(tensor))
    except ValueError:  # a dtype that buffers do not know, such as bfloat16
        return np.asarray(tensor.numpy())
