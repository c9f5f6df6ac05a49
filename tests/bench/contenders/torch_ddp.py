"""PyTorch's DistributedDataParallel over Gloo, as torchrun starts it."""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.bench.contenders.problem import parse_arguments
from tests.bench.contenders.torch_loop import build, run

problem = parse_arguments()
dist.init_process_group("gloo")
plain, optimizer = build(problem)
model = DistributedDataParallel(plain)
run(problem, model, optimizer, dist.get_rank(), dist.get_world_size(), no_sync=model.no_sync)
dist.destroy_process_group()
