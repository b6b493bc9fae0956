"""PyTorch loops for the comparison with DDP: the same networks, data and optimizer, made elastic by `Elastic`.

Workers import this module, and find the batch and the number of steps in their environment.
"""

from __future__ import annotations

import os

import torch
from torch import nn

from benchmarks.peers import shapes
from benchmarks.peers.torch_models import build, samples
from scavenger.sdk import loop
from scavenger.sdk.torch import Elastic

BATCH, STEPS = "BENCHMARK_LOCAL_BATCH", "BENCHMARK_STEPS"
"""Variables of the environment: samples of a worker's batch, and steps of the run."""


def _train(network: str) -> None:
    torch.set_num_threads(1)
    batch_size, steps = int(os.environ[BATCH]), int(os.environ[STEPS])
    model = build(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=shapes.LEARNING_RATE, fused=True)
    x, y = samples(network, batch_size)
    loss_of = nn.CrossEntropyLoss()
    elastic = Elastic(model, optimizer)
    job = loop.init([steps * batch_size] * 2, state=elastic.state, load=elastic.load)
    for _ in job.epochs(1):
        for batch in job.batches(batch_size):
            elastic.zero_grad()
            loss = loss_of(model(x[: len(batch)]), y[: len(batch)])
            loss.backward()
            elastic.step(job)
            job.notify_batch_end()


def mlp() -> None:
    """The large network."""
    _train("mlp")


def cnn() -> None:
    """The small network."""
    _train("cnn")
