"""DeepSpeed on CPUs over Gloo, ZeRO stage 0, with PyTorch's own SGD.

The engine divides the loss by ``gradient_accumulation_steps`` and makes an update after each so many micro-batches,
wherever the epoch ends: what an odd number of micro-batches leaves over goes into the first update of the next epoch.
"""

from __future__ import annotations

import deepspeed
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from tests.parity.peers.problem import Problem, parse_arguments, write_result
from tests.parity.peers.torch_net import build_net, build_sgd, read_weights, to_tensors


def train(problem: Problem):
    settings = {
        "train_batch_size": problem.global_batch_size,
        "gradient_accumulation_steps": problem.accumulation,
        "zero_optimization": {"stage": 0},
        "gradient_clipping": 0.0,  # without this line DeepSpeed 0.19 clips at a norm of 1
    }
    model = build_net(problem)
    engine, *_ = deepspeed.initialize(model=model, optimizer=build_sgd(problem, model), config=settings)
    losses = []
    for parts in problem.rank_steps(dist.get_rank(), dist.get_world_size()):
        loss_sum = num_samples = 0
        for features, labels in map(to_tensors, parts):
            loss = cross_entropy(engine(features), labels)
            engine.backward(loss)
            engine.step()
            loss_sum += loss.item() * len(labels)
            num_samples += len(labels)
        losses.append((loss_sum, num_samples))
    return losses, read_weights(engine.module)


def main():
    problems, out = parse_arguments()
    # Gloo alone: DeepSpeed's own reduction through shared memory is compiled at its first use.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    for problem in problems:
        write_result(out, problem, dist.get_rank(), *train(problem))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
