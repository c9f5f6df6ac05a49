"""The library interface in a script of your own; only the framework's lines differ from its twin.

    mpirun -np 2 python examples/own_script_torch.py [EPOCHS]

The run is saved after each epoch, in runs/own_script_torch. The same line again continues it where it was
stopped; with more EPOCHS it goes on from where it ended.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

import hvdtrain


def build_model():
    from torch import nn

    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def loss(model, batch):
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(batch["image"]), batch["label"], reduction="none")


def metrics(model, batch):
    return {"accuracy": (model(batch["image"]).argmax(1) == batch["label"]).float()}


def main():
    images, labels = load_digits(return_X_y=True)
    samples = [{"image": image / 16.0, "label": label} for image, label in zip(images, labels, strict=True)]
    np.random.default_rng(0).shuffle(samples)
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    config = hvdtrain.TrainConfig(
        epochs=epochs, global_batch_size=50, learning_rate=0.5, momentum=0.9, save_every_epochs=1, keep_last=2
    )
    trainer = hvdtrain.TorchTrainer(
        build_model, loss=loss, metrics=metrics, config=config, run_dir="runs/own_script_torch", resume=True
    )
    summary = trainer.fit(samples[:-360], samples[-360:])
    if trainer.topology.is_root:
        print(f"{summary['framework']} on {summary['size']} ranks: accuracy {summary['eval']['accuracy']:.3f}")


if __name__ == "__main__":
    main()
