"""Horovod as its documentation has it, under horovodrun. Its Keras 3 optimizer reduces nothing, so the tape does."""

import horovod.tensorflow as hvd

from tests.bench.contenders.problem import parse_arguments
from tests.bench.contenders.tensorflow_loop import build, clipped, gradients_of, run

problem = parse_arguments()
hvd.init()
model, optimizer = build(problem)
hvd.broadcast_variables([variable.value for variable in model.variables], root_rank=0)


def step(parts):
    gradients, loss = gradients_of(problem, model, parts)
    reduced = [hvd.allreduce(gradient, op=hvd.Average) for gradient in gradients]
    optimizer.apply_gradients(zip(clipped(problem, reduced), model.trainable_variables, strict=True))
    return loss


run(problem, step, hvd.rank(), hvd.size())
