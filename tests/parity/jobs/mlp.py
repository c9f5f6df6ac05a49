"""The job of the peers for hvdtrain: net, samples and settings from the file that HVDTRAIN_PARITY_PROBLEM names."""

import os

import numpy as np

import hvdtrain

with np.load(os.environ["HVDTRAIN_PARITY_PROBLEM"]) as file:
    problem = dict(file)

weights = {name: problem[name] for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")}
config = hvdtrain.TrainConfig(
    max_steps=problem["num_steps"].item(),
    global_batch_size=problem["global_batch_size"].item(),
    backward_passes_per_step=problem["accumulation"].item(),
    optimizer="sgd",
    learning_rate=problem["lr"].item(),
    momentum=problem["momentum"].item(),
    shuffle=False,
    log_every_steps=1,
)


def train_data():
    return list(zip(problem["features"], problem["labels"], strict=True))


def torch_model():
    from collections import OrderedDict

    import torch
    from torch import nn

    hidden, inputs = weights["fc1.weight"].shape
    fc2 = nn.Linear(hidden, len(weights["fc2.bias"]))
    model = nn.Sequential(OrderedDict(fc1=nn.Linear(inputs, hidden), act=nn.Tanh(), fc2=fc2))
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    return model


def torch_loss(model, batch):
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(batch[0]), batch[1], reduction="none")


def tensorflow_model():
    from keras import Sequential, layers

    hidden, inputs = weights["fc1.weight"].shape
    fc1 = layers.Dense(hidden, activation="tanh", name="fc1")
    fc2 = layers.Dense(len(weights["fc2.bias"]), name="fc2")
    model = Sequential([layers.Input((inputs,)), fc1, fc2])
    model.set_weights([array.T for array in weights.values()])
    return model


def tensorflow_loss(model, batch):
    from keras.losses import sparse_categorical_crossentropy

    return sparse_categorical_crossentropy(batch[1], model(batch[0]), from_logits=True)
