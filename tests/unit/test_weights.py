"""Which framework a model belongs to; loading itself is tested with the frameworks, in ``tests/parallel``."""

from __future__ import annotations

import pytest

from hvdtrain.errors import ConfigError
from hvdtrain.weights import _framework_of, load_weights


def class_of(module, *bases):
    return type("Model", bases, {"__module__": module})


@pytest.mark.parametrize(
    ("module", "framework"),
    [
        ("torch.nn.modules.module", "torch"),
        ("torch.nn", "torch"),
        ("keras.src.models.model", "tensorflow"),
        ("keras", "tensorflow"),
    ],
)
def test_framework_is_that_of_the_class_a_model_derives_from(module, framework):
    users = class_of("job", class_of(module))
    assert _framework_of(users()) == framework


@pytest.mark.parametrize("module", ["torchvision", "kerastuner", "torch.nnx", "job"])
def test_anything_else_is_refused_before_a_file_is_read(module):
    with pytest.raises(ConfigError) as caught:
        load_weights(class_of(module)(), "nowhere")
    assert str(caught.value) == (
        "load_weights: the model must be a torch.nn.Module or a keras.Model, got Model. Pass the model itself, not the "
        "function that makes it."
    )
