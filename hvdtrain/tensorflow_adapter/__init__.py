"""The TensorFlow adapter: the only place that names tensorflow, keras and horovod.tensorflow."""
