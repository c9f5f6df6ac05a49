"""A loop by hand with the settings of hvdtrain: one group, ranks that give way while they wait, sums."""

import horovod.torch as hvd
from mpi4py import MPI  # noqa: F401 - starts MPI with threads, as hvdtrain does

from tests.bench.contenders.problem import parse_arguments
from tests.bench.contenders.torch_loop import build, run

problem = parse_arguments()
hvd.init()
model, plain = build(problem)
optimizer = hvd.DistributedOptimizer(
    plain, named_parameters=model.named_parameters(), backward_passes_per_step=problem.accumulation, groups=1
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
run(
    problem,
    *(model, optimizer, hvd.rank(), hvd.size()),
    before_clip=optimizer.synchronize,
    in_step=optimizer.skip_synchronize,
)
