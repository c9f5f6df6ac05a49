"""PyTorch in one process: the whole global batch in one pass, whatever the accumulation."""

from __future__ import annotations

from torch.nn.functional import cross_entropy

from tests.parity.peers.problem import Problem, parse_arguments, write_result
from tests.parity.peers.torch_net import build_net, build_sgd, read_weights, to_tensors


def train(problem: Problem):
    model = build_net(problem)
    optimizer = build_sgd(problem, model)
    losses = []
    for features, labels in map(to_tensors, problem.whole_steps()):
        optimizer.zero_grad()
        loss = cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        losses.append((loss.item() * len(labels), len(labels)))
    return losses, read_weights(model)


def main():
    problems, out = parse_arguments()
    for problem in problems:
        write_result(out, problem, 0, *train(problem))


if __name__ == "__main__":
    main()
