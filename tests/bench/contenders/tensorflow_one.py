"""One process of TensorFlow."""

from tests.bench.contenders.problem import parse_arguments
from tests.bench.contenders.tensorflow_loop import build, clipped, gradients_of, run

problem = parse_arguments()
model, optimizer = build(problem)


def step(parts):
    gradients, loss = gradients_of(problem, model, parts)
    optimizer.apply_gradients(zip(clipped(problem, gradients), model.trainable_variables, strict=True))
    return loss


run(problem, step, 0, 1)
