"""A model that `fully_shard` divides, as a job or by torchrun; tells how long its steps take."""

import argparse
import json
import os
import statistics
import time

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import scavenger.torch as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--samples", type=int, default=2560)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--replicas", type=int, default=1)
parser.add_argument("--device", default="cpu")
WIDTH, LAYERS, WARM_UP = 1024, 6, 10


def main() -> None:
    args = parser.parse_args()
    torch.distributed.init_process_group("nccl" if args.device == "cuda" else "gloo")
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    world = torch.distributed.get_world_size()
    shape = (args.replicas, world // args.replicas) if args.replicas > 1 else (world,)
    names = ("replicas", "parts") if args.replicas > 1 else ("parts",)
    mesh = init_device_mesh(args.device, shape, mesh_dim_names=names)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(args.samples, WIDTH), torch.randn(args.samples, WIDTH))
    loader = DataLoader(data, args.batch_size // world, sampler=DistributedSampler(data))
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)))
    model.to(args.device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    model, optimizer, loader = elastic.prepare(model, optimizer, loader)
    for _ in range(args.epochs):
        steps: list[float] = []
        began = time.perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x.to(args.device)), y.to(args.device))
            loss.backward()
            optimizer.step()
            loss.item()  # waits for the device
            steps.append(time.perf_counter() - began)
            began = time.perf_counter()
        file = os.path.join(os.environ["BENCHMARK_OUT"], f"{os.getpid()}.json")
        with open(file, "w", encoding="utf-8") as out:
            json.dump(statistics.median(steps[WARM_UP:]), out)


if __name__ == "__main__":
    main()
