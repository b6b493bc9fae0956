"""A plain PyTorch loop on scikit-learn's handwritten digits, as a job: `scavenger optimize job.yaml`."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from scavenger.sdk import LoopJob, loop
from scavenger.sdk.torch import Elastic

SHARD = 256  # samples that a worker reads in a row; several times its batch


def data() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return torch.from_numpy(images[order] / 16.0).float(), torch.from_numpy(labels[order])


def train() -> None:
    images, labels = data()
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    elastic = Elastic(model, optimizer)

    def evaluate() -> dict[str, float]:
        with torch.no_grad():
            return {"val_accuracy": float((model(images[1536:]).argmax(1) == labels[1536:]).float().mean())}

    job = loop.init([SHARD] * 6, state=elastic.state, load=elastic.load, evaluate=evaluate)
    for _ in job.epochs():
        for batch in job.batches():
            rows = slice(batch.shard * SHARD + batch.start, batch.shard * SHARD + batch.stop)
            elastic.zero_grad()
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            loss.backward()
            elastic.step(job)
            job.notify_batch_end(loss=loss.item())


job = LoopJob(train, metrics=["val_accuracy"])
