"""One process of PyTorch."""

from tests.bench.contenders.problem import parse_arguments
from tests.bench.contenders.torch_loop import build, run

problem = parse_arguments()
run(problem, *build(problem), 0, 1)
