"""Plain Horovod in PyTorch: broadcast, DistributedOptimizer, and a loop by hand.

Horovod averages the gradients of the ranks. Accumulation follows Horovod's own ImageNet example: each loss is divided
by the number of micro-batches that the step really has.
"""

from __future__ import annotations

import horovod.torch as hvd
from torch.nn.functional import cross_entropy

from tests.parity.peers.problem import Problem, parse_arguments, write_result
from tests.parity.peers.torch_net import build_net, build_sgd, read_weights, to_tensors


def train(problem: Problem):
    model = build_net(problem)
    optimizer = hvd.DistributedOptimizer(
        build_sgd(problem, model), model.named_parameters(), backward_passes_per_step=problem.accumulation
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    losses = []
    for parts in problem.rank_steps(hvd.rank(), hvd.size()):
        optimizer.zero_grad()
        loss_sum = num_samples = 0
        for features, labels in map(to_tensors, parts):
            loss = cross_entropy(model(features), labels)
            (loss / len(parts)).backward()
            loss_sum += loss.item() * len(labels)
            num_samples += len(labels)
        optimizer.step()
        losses.append((loss_sum, num_samples))
    return losses, read_weights(model)


def main():
    problems, out = parse_arguments()
    hvd.init()
    for problem in problems:
        write_result(out, problem, hvd.rank(), *train(problem))
    hvd.shutdown()


if __name__ == "__main__":
    main()
