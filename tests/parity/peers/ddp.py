"""PyTorch's DistributedDataParallel over Gloo, as torchrun starts it.

DDP averages the gradients of the ranks. Accumulation is written by hand in the usual way: ``no_sync`` for all but
the last micro-batch, each loss divided by the number of micro-batches, and a step at the end of the epoch too.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tests.parity.peers.problem import Problem, parse_arguments, write_result
from tests.parity.peers.torch_net import build_net, build_sgd, read_weights, to_tensors


def train(problem: Problem):
    model = DistributedDataParallel(build_net(problem))
    optimizer = build_sgd(problem, model)
    losses = []
    for parts in problem.rank_steps(dist.get_rank(), dist.get_world_size()):
        optimizer.zero_grad()
        loss_sum = num_samples = 0
        for index, (features, labels) in enumerate(map(to_tensors, parts)):
            with nullcontext() if index + 1 == len(parts) else model.no_sync():
                loss = cross_entropy(model(features), labels)
                (loss / problem.accumulation).backward()
            loss_sum += loss.item() * len(labels)
            num_samples += len(labels)
        optimizer.step()
        losses.append((loss_sum, num_samples))
    return losses, read_weights(model.module)


def main():
    problems, out = parse_arguments()
    dist.init_process_group("gloo")
    for problem in problems:
        write_result(out, problem, dist.get_rank(), *train(problem))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
