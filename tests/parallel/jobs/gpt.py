"""The smallest GPT of the examples, which trains and does nothing else: no evaluation, and no line at the end."""

from examples.shakespeare import config, tensorflow_loss, tensorflow_model, torch_loss, torch_model, train_data

__all__ = ["config", "tensorflow_loss", "tensorflow_model", "torch_loss", "torch_model", "train_data"]
