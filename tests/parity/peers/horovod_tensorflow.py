"""Plain Horovod in TensorFlow: broadcast, DistributedGradientTape, and a loop by hand.

The tape averages the gradients of the ranks at each micro-batch. The loop adds them up and divides by the number of
micro-batches that the step really has.
"""

from __future__ import annotations

import horovod.tensorflow as hvd
import tensorflow as tf

from tests.parity.peers.keras_net import build_net, build_sgd, read_weights, sample_losses, to_tensors
from tests.parity.peers.problem import Problem, parse_arguments, write_result


def train(problem: Problem):
    model = build_net(problem)
    optimizer = build_sgd(problem)
    variables = [variable.value for variable in model.trainable_variables]
    hvd.broadcast_variables(variables, root_rank=0)

    @tf.function(reduce_retracing=True)
    def backward(features, labels):
        with tf.GradientTape() as tape:
            values = sample_losses(model, features, labels)
            loss = tf.reduce_mean(values)
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        return tf.reduce_sum(values), gradients

    losses = []
    for parts in problem.rank_steps(hvd.rank(), hvd.size()):
        loss_sums, gradients = zip(*(backward(*to_tensors(part)) for part in parts), strict=True)
        mean = [tf.add_n(passes) / len(parts) for passes in zip(*gradients, strict=True)]
        optimizer.apply_gradients(zip(mean, model.trainable_variables, strict=True))
        losses.append((float(tf.add_n(loss_sums)), sum(len(labels) for _, labels in parts)))
    return losses, read_weights(problem, model)


def main():
    problems, out = parse_arguments()
    hvd.init()
    for problem in problems:
        write_result(out, problem, hvd.rank(), *train(problem))
    hvd.shutdown()


if __name__ == "__main__":
    main()
