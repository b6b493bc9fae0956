"""PyTorch's DistributedDataParallel over gloo: steps, and their gradient alone, in windows that take turns.

A child process of the benchmarks; its last line on standard output is a JSON document.
"""

from __future__ import annotations

import argparse
import copy
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers import shapes
from benchmarks.peers.running import peer_arguments
from benchmarks.peers.torch_models import build, samples

_WARM_UP_STEPS = 3


def main() -> None:
    parser = peer_arguments(argparse.ArgumentParser())
    parser.add_argument("--network", required=True)
    parser.add_argument("--batch", type=int, required=True, help="of each rank")
    parser.add_argument("--steps", type=int, required=True, help="of a window")
    parser.add_argument("--windows", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    addresses = options.addresses.split(",")
    dist.init_process_group(
        "gloo", init_method=f"tcp://{addresses[0]}", rank=options.rank, world_size=len(addresses)
    )
    model = build(options.network)
    alone = copy.deepcopy(model)
    together = DistributedDataParallel(model, gradient_as_bucket_view=True)
    # what PyTorch recommends for speed: one fused pass for the optimizer, no copy between buckets and gradients
    optimizer = torch.optim.Adam(together.parameters(), lr=shapes.LEARNING_RATE, fused=True)
    x, y = samples(options.network, options.batch)
    loss_of = nn.CrossEntropyLoss()

    def gradient(network: nn.Module) -> None:
        network.zero_grad(set_to_none=True)
        loss_of(network(x), y).backward()

    def step() -> None:
        gradient(together)
        optimizer.step()

    found: dict[str, list[float]] = {"step_times_s": [], "gradient_times_s": []}
    for window in range(options.windows):
        for name, task in (("step_times_s", step), ("gradient_times_s", lambda: gradient(alone))):
            dist.barrier()
            warm_up = 1 if window else _WARM_UP_STEPS
            for number in range(warm_up + options.steps):
                begin = time.perf_counter()
                task()
                if number >= warm_up:
                    found[name].append(time.perf_counter() - begin)
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
