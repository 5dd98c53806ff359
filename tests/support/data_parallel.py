"""One process of a training step with torch.nn.parallel.DistributedDataParallel, for test_training.py."""

import os

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from training_networks import Small, images

from fused_resnet.training.kernels import bound_problem


def parallel_network():
    torch.manual_seed(0)
    small = Small().train()
    small.norm.eval()  # its statistics would be those of one process
    return small


def train(rank: int, database: str, folder: str) -> None:
    """Run one step on the images of seed `rank`; save the gradients, and what hooks and kernels of ours have seen."""
    os.environ["AUTOTUNE_INDUCTOR"] = "0"
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    solved, hooked, run = [], [], bound_problem.BoundProblem.run
    bound_problem.BoundProblem.run = lambda bound, operands: (solved.append(bound._step.name), run(bound, operands))[1]
    distributed._DEFAULT_FIRST_BUCKET_BYTES = 1000  # several buckets, so that Dynamo splits the graph
    parallel = DistributedDataParallel(parallel_network(), bucket_cap_mb=0.001)
    for name, parameter in parallel.module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: hooked.append(name))
    step = torch.compile(parallel, backend="autotune", dynamic=False, options={"tuning_db": database})
    step(images(seed=rank)).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in parallel.module.named_parameters()}
    torch.save((gradients, hooked, solved), f"{folder}/{rank}.pt")
    distributed.barrier()
    # The reducer's destructor holds Python's lock while it waits for gloo's thread, which may wait for that lock.
    # So the process ends without destructors.
    os._exit(0)
