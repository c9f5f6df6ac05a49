"""The library interface in a script of your own; only the framework's lines differ from its twin.

mpirun -np 2 python examples/own_script_tensorflow.py
"""

import numpy as np
from sklearn.datasets import load_digits

import hvdtrain


def build_model():
    from keras import Sequential, layers

    return Sequential([layers.Input((64,)), layers.Dense(32, activation="tanh"), layers.Dense(10)])


def loss(model, batch):
    from keras.losses import sparse_categorical_crossentropy

    return sparse_categorical_crossentropy(batch["label"], model(batch["image"]), from_logits=True)


def metrics(model, batch):
    from keras.metrics import sparse_categorical_accuracy

    return {"accuracy": sparse_categorical_accuracy(batch["label"], model(batch["image"]))}


def main():
    images, labels = load_digits(return_X_y=True)
    samples = [{"image": image / 16.0, "label": label} for image, label in zip(images, labels, strict=True)]
    np.random.default_rng(0).shuffle(samples)
    config = hvdtrain.TrainConfig(epochs=5, global_batch_size=50, learning_rate=0.5, momentum=0.9)
    trainer = hvdtrain.TensorFlowTrainer(build_model, loss=loss, metrics=metrics, config=config)
    summary = trainer.fit(samples[:-360], samples[-360:])
    if trainer.topology.is_root:
        print(f"{summary['framework']} on {summary['size']} ranks: accuracy {summary['eval']['accuracy']:.3f}")


if __name__ == "__main__":
    main()
