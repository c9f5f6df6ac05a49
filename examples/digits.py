"""Handwritten digits, 8 x 8 pixels, with a small convolutional net: the main job, the same in both frameworks.

    horovodrun -np 2 hvdtrain train examples/digits.py --framework torch
    horovodrun -np 2 hvdtrain train examples/digits.py --framework tensorflow

GELU and average pooling are smooth, so both frameworks walk the same curve; kinks (ReLU, max-pooling) would let
their rounding grow. Data: scikit-learn's digits, which the package ships.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import hvdtrain

config = hvdtrain.TrainConfig(
    epochs=12,
    global_batch_size=64,
    optimizer="adamw",
    learning_rate=0.003,
    weight_decay=0.01,
    warmup_epochs=1,
    decay="cosine",
    clip_norm=5.0,
)


def train_data():
    return _digits()[: -_held_out()]


def eval_data():
    return _digits()[-_held_out() :]


@cache
def _digits():
    # The file itself, because to import scikit-learn takes longer than to import PyTorch.
    package = Path(find_spec("sklearn").submodule_search_locations[0])
    table = np.loadtxt(package / "datasets/data/digits.csv.gz", delimiter=",")
    table = table[np.random.default_rng(0).permutation(len(table))]
    images = (table[:, :-1].reshape(-1, 8, 8) / 16.0).astype(np.float32)
    labels = table[:, -1].astype(np.int64)
    return [{"image": image, "label": label} for image, label in zip(images, labels, strict=True)]


def _held_out():
    return 1797 // 5


# ---------------------------------------------------------------- PyTorch
def torch_model():
    from collections import OrderedDict

    from torch import nn

    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 16, 3, padding=1),
            act1=nn.GELU(),
            conv2=nn.Conv2d(16, 32, 3, padding=1),
            act2=nn.GELU(),
            pool=nn.AvgPool2d(2),
            flat=nn.Flatten(),
            fc1=nn.Linear(512, 64),
            act3=nn.GELU(),
            fc2=nn.Linear(64, 10),
        )
    )


def torch_loss(model, batch):
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(batch["image"].unsqueeze(1)), batch["label"], reduction="none")


def torch_metrics(model, batch):
    return {"accuracy": (model(batch["image"].unsqueeze(1)).argmax(1) == batch["label"]).float()}


# ---------------------------------------------------------------- TensorFlow
def tensorflow_model():
    from keras import Sequential, layers

    return Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="gelu", name="conv1"),
            layers.Conv2D(32, 3, padding="same", activation="gelu", name="conv2"),
            layers.AveragePooling2D(2),
            layers.Permute((3, 1, 2)),  # channels first, the order in which PyTorch flattens
            layers.Flatten(),
            layers.Dense(64, activation="gelu", name="fc1"),
            layers.Dense(10, name="fc2"),
        ]
    )


def tensorflow_loss(model, batch):
    from keras.losses import sparse_categorical_crossentropy

    return sparse_categorical_crossentropy(batch["label"], model(batch["image"][..., None]), from_logits=True)


def tensorflow_metrics(model, batch):
    import tensorflow as tf

    predicted = tf.argmax(model(batch["image"][..., None]), axis=1)
    return {"accuracy": tf.cast(predicted == batch["label"], tf.float32)}
