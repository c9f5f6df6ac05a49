"""Horovod as its documentation has it, under horovodrun: no group, no setting."""

import horovod.torch as hvd

from tests.bench.contenders.problem import parse_arguments
from tests.bench.contenders.torch_loop import build, run

problem = parse_arguments()
hvd.init()
model, plain = build(problem)
optimizer = hvd.DistributedOptimizer(
    plain, named_parameters=model.named_parameters(), backward_passes_per_step=problem.accumulation
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
run(
    problem,
    *(model, optimizer, hvd.rank(), hvd.size()),
    before_clip=optimizer.synchronize,
    in_step=optimizer.skip_synchronize,
)
