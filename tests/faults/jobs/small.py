"""A small net for both frameworks that is killed, frozen and starved; its weights come from NumPy in each of them."""

from __future__ import annotations

import numpy as np

import hvdtrain
from tests.faults.kit import install

#: Four updates an epoch, the last one of two samples; checkpoints after 3, 6, 9 and 12 updates.
config = hvdtrain.TrainConfig(
    epochs=3,
    global_batch_size=8,
    backward_passes_per_step=2,
    optimizer="adamw",
    learning_rate=0.02,
    weight_decay=0.01,
    clip_norm=1.0,
    warmup_epochs=1.0,
    decay="cosine",
    seed=3,
    log_every_steps=2,
    save_every_steps=3,
)

INPUTS, HIDDEN, CLASSES = 16, 32, 4
_rng = np.random.default_rng(7)
weights = {
    "fc1.weight": _rng.normal(size=(HIDDEN, INPUTS)) / 4,
    "fc1.bias": _rng.normal(size=HIDDEN) / 4,
    "fc2.weight": _rng.normal(size=(CLASSES, HIDDEN)) / 6,
    "fc2.bias": _rng.normal(size=CLASSES) / 6,
}
weights = {name: array.astype(np.float32) for name, array in weights.items()}

install()


def samples(count, seed):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, INPUTS)).astype(np.float32)
    labels = (features[:, :CLASSES] + rng.normal(size=(count, CLASSES))).argmax(axis=1)
    weight = np.float32(1.0)
    return [{"x": x, "y": y, "weight": weight} for x, y in zip(features, labels.astype(np.int64), strict=True)]


def train_data():
    return samples(26, seed=0)


def eval_data():
    return samples(11, seed=1)


def torch_model():
    from collections import OrderedDict

    import torch
    from torch import nn

    layers = OrderedDict(fc1=nn.Linear(INPUTS, HIDDEN), act=nn.Tanh(), fc2=nn.Linear(HIDDEN, CLASSES))
    model = nn.Sequential(layers)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    return model


def torch_loss(model, batch):
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(batch["x"]), batch["y"], reduction="none"), batch["weight"]


def torch_metrics(model, batch):
    return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float()}


def tensorflow_model():
    from keras import Sequential, layers

    fc1 = layers.Dense(HIDDEN, activation="tanh", name="fc1")
    model = Sequential([layers.Input((INPUTS,)), fc1, layers.Dense(CLASSES, name="fc2")])
    model.set_weights([array.T for array in weights.values()])
    return model


def tensorflow_loss(model, batch):
    from keras.losses import sparse_categorical_crossentropy

    return sparse_categorical_crossentropy(batch["y"], model(batch["x"]), from_logits=True), batch["weight"]


def tensorflow_metrics(model, batch):
    import tensorflow as tf

    return {"accuracy": tf.cast(tf.argmax(model(batch["x"]), 1) == batch["y"], tf.float32)}
