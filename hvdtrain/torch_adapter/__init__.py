"""The PyTorch adapter: the only place that names torch and horovod.torch."""
