"""hvdtrain as `hvdtrain train` runs a job: its loader, its rows, its checks."""

import hvdtrain
from tests.bench.contenders.ours import train

train(hvdtrain.TensorFlowTrainer, "tensorflow")
