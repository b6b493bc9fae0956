"""PyTorch loops for the comparison with DDP: the same networks, data and optimizer, made elastic by `Elastic`.

Workers import this module, and find the batch and the number of steps in their environment.
"""

from __future__ import annotations

import os

import torch
from torch import nn

from benchmarks.peers import shapes
from benchmarks.peers.torch_models import build, precision, samples
from scavenger.sdk import loop
from scavenger.sdk.torch import Elastic

BATCH, STEPS, DEVICE = "BENCHMARK_LOCAL_BATCH", "BENCHMARK_STEPS", "BENCHMARK_DEVICE"
"""Variables of the environment: samples of a worker's batch, steps of the run, where it computes (by default `cpu`)."""


def _train(network: str) -> None:
    torch.set_num_threads(1)
    batch_size, steps, device = int(os.environ[BATCH]), int(os.environ[STEPS]), os.environ.get(DEVICE, "cpu")
    model = build(network).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=shapes.LEARNING_RATE, fused=True)
    x, y = (part.to(device) for part in samples(network, batch_size))
    loss_of = nn.CrossEntropyLoss()
    elastic = Elastic(model, optimizer)
    job = loop.init([steps * batch_size] * 2, state=elastic.state, load=elastic.load)
    for _ in job.epochs(1):
        for batch in job.batches(batch_size):
            elastic.zero_grad()
            with precision(network, device):
                loss = loss_of(model(x[: len(batch)]), y[: len(batch)].flatten())
            loss.backward()
            elastic.step(job)
            job.notify_batch_end()


def mlp() -> None:
    """The large network."""
    _train("mlp")


def cnn() -> None:
    """The small network."""
    _train("cnn")


def transformer() -> None:
    """The network for GPUs."""
    _train("transformer")


def small() -> None:
    """One of its kind that any processor computes in a moment."""
    _train("small")
