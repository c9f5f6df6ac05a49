"""Loads a checkpoint where Horovod cannot be imported: ``python loads_plainly.py FRAMEWORK PATH``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import safetensors.numpy

_spec = importlib.util.spec_from_file_location("images", Path(__file__).parent / "images.py")
images = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(images)


def load_torch(path):
    import safetensors.torch
    import torch

    tensors = safetensors.torch.load_file(path / "model.safetensors")
    for name in ("model", "optimizer"):
        file = path / f"{name}.safetensors"
        read = torch.load(file, weights_only=True)
        expected = safetensors.numpy.load_file(file)
        assert read.keys() == expected.keys()
        assert all(np.array_equal(read[key].numpy(), array) for key, array in expected.items())
    model, other = images.torch_model(), images.torch_model()
    model.load_state_dict(tensors, strict=True)
    hvdtrain.load_weights(other, path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    return model


def load_tensorflow(path):
    model = images.tensorflow_model()
    hvdtrain.load_weights(model, path)
    return model


def main() -> None:
    framework, path = sys.argv[1], Path(sys.argv[2])
    model = globals()[f"load_{framework}"](path)
    tensors = safetensors.numpy.load_file(path / "model.safetensors")
    arrays = [np.asarray(weight.detach() if framework == "torch" else weight) for weight in _weights(model)]
    if framework == "tensorflow":  # kernels have their outputs last
        arrays = [np.moveaxis(array, [-1, -2], [0, 1]) for array in arrays if array.ndim > 1]
        tensors = {name: array for name, array in tensors.items() if array.ndim > 1}
    assert sorted(map(_bits, arrays)) == sorted(map(_bits, tensors.values()))
    print("loaded", len(arrays))


def _weights(model):
    return model.parameters() if hasattr(model, "parameters") else model.weights


def _bits(array):
    return array.shape, array.tobytes()


if __name__ == "__main__":
    try:
        import horovod
    except ImportError:
        import hvdtrain

        main()
    else:
        raise SystemExit(f"horovod is there: {horovod}")
