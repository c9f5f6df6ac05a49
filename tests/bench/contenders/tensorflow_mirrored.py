"""TensorFlow's MultiWorkerMirroredStrategy with a loop by hand, as TensorFlow's tutorial of custom loops has it."""

import tensorflow as tf

from tests.bench.contenders.problem import parse_arguments
from tests.bench.contenders.tensorflow_loop import build, clipped, gradients_of, run

problem = parse_arguments()
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model, optimizer = build(problem)
size = strategy.num_replicas_in_sync


def on_worker(parts):
    gradients, loss = gradients_of(problem, model, parts)
    optimizer.apply_gradients(zip(clipped(problem, gradients), model.trainable_variables, strict=True))
    return loss


def step(parts):
    return strategy.run(on_worker, args=(parts,))


run(problem, step, strategy.cluster_resolver.task_id, size)
