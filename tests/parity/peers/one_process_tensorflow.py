"""TensorFlow in one process: the whole global batch in one pass, whatever the accumulation."""

from __future__ import annotations

import tensorflow as tf

from tests.parity.peers.keras_net import build_net, build_sgd, read_weights, sample_losses, to_tensors
from tests.parity.peers.problem import Problem, parse_arguments, write_result


def train(problem: Problem):
    model = build_net(problem)
    optimizer = build_sgd(problem)
    losses = []
    for features, labels in map(to_tensors, problem.whole_steps()):
        with tf.GradientTape() as tape:
            values = sample_losses(model, features, labels)
            loss = tf.reduce_mean(values)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append((float(tf.reduce_sum(values)), len(labels)))
    return losses, read_weights(problem, model)


def main():
    problems, out = parse_arguments()
    for problem in problems:
        write_result(out, problem, 0, *train(problem))


if __name__ == "__main__":
    main()
