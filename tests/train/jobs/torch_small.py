"""A small PyTorch network with BatchNorm's counters, trained as a loop, or by DDP on the same order of data.

As a script: `torch_small.py RANK WORLD PORT ORDER.json WEIGHTS.npz`, one process for each rank.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
import torch
from torch import nn

from scavenger.sdk import LoopJob, loop
from scavenger.sdk.torch import Elastic

SHARDS, SHARD, LOCAL_BATCH, EPOCHS = 4, 32, 8, 3
X = torch.from_numpy(np.random.default_rng(3).normal(size=(SHARDS * SHARD, 12)).astype("float32"))
Y = torch.from_numpy(np.random.default_rng(4).integers(0, 5, size=SHARDS * SHARD))


def build(seed: int) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 5))
    return model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-3)


def train() -> None:
    model, optimizer = build(int(os.environ.get("SEED", "0")))
    elastic = Elastic(model, optimizer)
    job = loop.init([SHARD] * SHARDS, state=elastic.state, load=elastic.load)
    for _ in job.epochs(EPOCHS):
        for batch in job.batches(LOCAL_BATCH):
            rows = slice(batch.shard * SHARD + batch.start, batch.shard * SHARD + batch.stop)
            elastic.zero_grad()
            loss = nn.functional.cross_entropy(model(X[rows]), Y[rows])
            loss.backward()
            elastic.step(job)
            job.notify_batch_end(loss=loss.item())


def build_wide() -> tuple[Any, Any, Any]:
    """In double precision, with a schedule of the learning rate."""
    model, _ = build(0)
    model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5)


def compute_wide(model: Any, epoch: int, rows: Any) -> None:
    """The backward pass of a step; the first layer is frozen in every other epoch."""
    model[0].requires_grad_(epoch % 2 > 0)
    nn.functional.cross_entropy(model(X[rows].double()), Y[rows]).backward()


def train_wide() -> None:
    model, optimizer, scheduler = build_wide()
    elastic = Elastic(model, optimizer, scheduler=scheduler)
    job = loop.init([SHARD] * SHARDS, state=elastic.state, load=elastic.load)
    for epoch in job.epochs(2 * EPOCHS):
        for batch in job.batches(LOCAL_BATCH):
            elastic.zero_grad()
            begin = batch.shard * SHARD
            compute_wide(model, epoch, slice(begin + batch.start, begin + batch.stop))
            elastic.average(job)
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            elastic.step(job)
            scheduler.step()
            job.notify_batch_end()


job = LoopJob(train)


def main() -> None:
    rank, world, port, order, weights = sys.argv[1:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=int(world)
    )
    model, optimizer = build(0)
    together = nn.parallel.DistributedDataParallel(model)
    with open(order) as file:
        steps = json.load(file)
    for rows in steps:
        begin, end = rows[int(rank)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(together(X[begin:end]), Y[begin:end]).backward()
        optimizer.step()
    if rank == "0":
        np.savez(weights, **{name: tensor.numpy() for name, tensor in model.state_dict().items()})
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
