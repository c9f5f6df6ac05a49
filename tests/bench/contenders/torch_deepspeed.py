"""DeepSpeed on CPUs over Gloo, ZeRO stage 0, with PyTorch's own AdamW."""

import deepspeed
import torch.distributed as dist

from tests.bench.contenders.problem import Stopwatch, parse_arguments
from tests.bench.contenders.torch_loop import build, mean_loss

problem = parse_arguments()
# Gloo alone: DeepSpeed's own reduction through shared memory is compiled at its first use.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed("gloo")
model, optimizer = build(problem)
settings = {
    "train_micro_batch_size_per_gpu": problem.batch_size,
    "gradient_accumulation_steps": problem.accumulation,
    "zero_optimization": {"stage": 0},
    "gradient_clipping": problem.clip_norm or 0.0,
}
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
watch = Stopwatch(problem)
for parts in problem.steps(dist.get_rank(), dist.get_world_size()):
    for batch in parts:
        loss = mean_loss(problem, engine, batch)
        engine.backward(loss)
        engine.step()
        loss.item()
    watch.step_done()
watch.tell(dist.get_rank())
dist.destroy_process_group()
