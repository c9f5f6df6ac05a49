"""TensorFlow's MultiWorkerMirroredStrategy with a loop by hand, as TensorFlow's tutorial of custom loops has it.

``tf.nn.compute_average_loss`` divides a worker's sum by its own batch size times the number of workers, and the
optimizer adds the gradients of the workers up. Accumulation divides each loss by the number of micro-batches.
"""

from __future__ import annotations

import tensorflow as tf

from tests.parity.peers.keras_net import build_net, build_sgd, read_weights, sample_losses, to_tensors
from tests.parity.peers.problem import Problem, parse_arguments, write_result


def train(problem: Problem, strategy: tf.distribute.Strategy):
    with strategy.scope():
        model = build_net(problem)
        optimizer = build_sgd(problem)
        optimizer.build(model.trainable_variables)

    def on_worker(parts):
        gradients, loss_sum = [], 0.0
        for features, labels in parts:
            with tf.GradientTape() as tape:
                values = sample_losses(model, features, labels)
                loss = tf.nn.compute_average_loss(values) / problem.accumulation
            gradients.append(tape.gradient(loss, model.trainable_variables))
            loss_sum += tf.reduce_sum(values)
        total = [tf.add_n(passes) for passes in zip(*gradients, strict=True)]
        optimizer.apply_gradients(zip(total, model.trainable_variables, strict=True))
        return loss_sum

    @tf.function
    def step(parts):
        return strategy.run(on_worker, args=(parts,))

    resolver, losses = strategy.cluster_resolver, []
    for parts in problem.rank_steps(resolver.task_id, strategy.num_replicas_in_sync):
        loss_sum = step([to_tensors(part) for part in parts])
        losses.append((float(loss_sum), sum(len(labels) for _, labels in parts)))
    return losses, read_weights(problem, model)


def main():
    problems, out = parse_arguments()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    for problem in problems:
        write_result(out, problem, strategy.cluster_resolver.task_id, *train(problem, strategy))


if __name__ == "__main__":
    main()
