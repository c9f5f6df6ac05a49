"""A small transformer on character sequences in both frameworks: attention from dense layers, GELU, layer norm.

Sequences have a mask, so that losses carry weights that differ between samples.
"""

from __future__ import annotations

import numpy as np

import hvdtrain

VOCABULARY, LENGTH, WIDTH, HEADS, BLOCKS = 23, 12, 32, 4, 2

config = hvdtrain.TrainConfig(
    global_batch_size=24,
    backward_passes_per_step=2,
    optimizer="adamw",
    learning_rate=1e-3,
    weight_decay=0.01,
    clip_norm=1.0,
    warmup_epochs=2,
    decay="cosine",
    max_steps=200,
    log_every_steps=1,
)


def train_data():
    rng = np.random.default_rng(5)
    text = np.cumsum(rng.integers(0, 3, size=(250, LENGTH + 1)), axis=1) % VOCABULARY
    lengths = rng.integers(LENGTH // 2, LENGTH + 1, size=250)
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.float32)
    return [
        {"text": row[:-1].astype(np.int64), "next": row[1:].astype(np.int64), "mask": kept}
        for row, kept in zip(text, mask, strict=True)
    ]


def torch_model():
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-3), nn.LayerNorm(WIDTH, eps=1e-3)
            self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

        def forward(self, x):
            size, length, _ = x.shape
            h = self.norm1(x)
            q, k, v = (
                part(h).reshape(size, length, HEADS, WIDTH // HEADS).transpose(1, 2)
                for part in (self.query, self.key, self.value)
            )
            scores = q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
            scores = scores + torch.triu(torch.full((length, length), -1e9), 1)
            mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(size, length, WIDTH)
            x = x + self.out(mixed)
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
            self.norm, self.head = nn.LayerNorm(WIDTH, eps=1e-3), nn.Linear(WIDTH, VOCABULARY)

        def forward(self, text):
            x = self.token(text) + self.position(torch.arange(LENGTH))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Transformer()


def torch_loss(model, batch):
    from torch.nn.functional import cross_entropy

    logits = model(batch["text"])
    return cross_entropy(logits.transpose(1, 2), batch["next"], reduction="none"), batch["mask"]


def tensorflow_model():
    import keras
    import tensorflow as tf
    from keras import layers

    class Block(layers.Layer):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = layers.LayerNormalization(), layers.LayerNormalization()
            self.query, self.key, self.value, self.out = (layers.Dense(WIDTH) for _ in range(4))
            self.up, self.down = layers.Dense(2 * WIDTH), layers.Dense(WIDTH)

        def call(self, x):
            shape = tf.shape(x)
            h = self.norm1(x)
            q, k, v = (
                tf.transpose(tf.reshape(part(h), (shape[0], LENGTH, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))
                for part in (self.query, self.key, self.value)
            )
            scores = tf.matmul(q, k, transpose_b=True) / (WIDTH // HEADS) ** 0.5
            scores += -1e9 * (1.0 - tf.linalg.band_part(tf.ones((LENGTH, LENGTH)), -1, 0))
            mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), v), (0, 2, 1, 3))
            x = x + self.out(tf.reshape(mixed, (shape[0], LENGTH, WIDTH)))
            return x + self.down(tf.nn.gelu(self.up(self.norm2(x)), approximate=False))

    class Transformer(keras.Model):
        def __init__(self):
            super().__init__()
            self.token, self.position = layers.Embedding(VOCABULARY, WIDTH), layers.Embedding(LENGTH, WIDTH)
            self.blocks = [Block() for _ in range(BLOCKS)]
            self.norm, self.head = layers.LayerNormalization(), layers.Dense(VOCABULARY)

        def call(self, text):
            x = self.token(text) + self.position(tf.range(LENGTH))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Transformer()


def tensorflow_loss(model, batch):
    from keras.losses import sparse_categorical_crossentropy

    return sparse_categorical_crossentropy(batch["next"], model(batch["text"]), from_logits=True), batch["mask"]
