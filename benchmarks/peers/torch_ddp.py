"""PyTorch's DistributedDataParallel: steps, and their gradient alone, in windows that take turns.

Over gloo, or on GPUs over NCCL. A child process of the benchmarks; its last line on standard output is a JSON document.
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
from benchmarks.peers.torch_models import build, precision, samples

_WARM_UP_STEPS = 3


def main() -> None:
    parser = peer_arguments(argparse.ArgumentParser())
    parser.add_argument("--network", required=True)
    parser.add_argument("--batch", type=int, required=True, help="of each rank")
    parser.add_argument("--steps", type=int, required=True, help="of a window")
    parser.add_argument("--windows", type=int, required=True)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: that with the number of the rank")
    options = parser.parse_args()
    torch.set_num_threads(1)
    addresses = options.addresses.split(",")
    on_gpu = options.device == "cuda"
    device = torch.device("cuda", options.rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"tcp://{addresses[0]}",
        rank=options.rank,
        world_size=len(addresses),
    )
    model = build(options.network).to(device)
    alone = copy.deepcopy(model)
    together = DistributedDataParallel(model, gradient_as_bucket_view=True)
    # what PyTorch recommends for speed: one fused pass for the optimizer, no copy between buckets and gradients
    optimizer = torch.optim.Adam(together.parameters(), lr=shapes.LEARNING_RATE, fused=True)
    x, y = (part.to(device) for part in samples(options.network, options.batch))
    loss_of = nn.CrossEntropyLoss()

    def gradient(network: nn.Module) -> None:
        network.zero_grad(set_to_none=True)
        with precision(options.network, options.device):
            loss = loss_of(network(x), y.flatten())
        loss.backward()

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
                if on_gpu:
                    torch.cuda.synchronize()
                if number >= warm_up:
                    found[name].append(time.perf_counter() - begin)
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
