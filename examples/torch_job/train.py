"""A plain PyTorch program on handwritten digits, which saves its state and goes on from it; three lines tell of it."""

import os
import sys

import torch
from sklearn.datasets import load_digits
from torch.nn import Linear, ReLU, Sequential
from torch.nn.functional import cross_entropy

from scavenger.sdk.report import scavenger_report

batch, path, epochs = int(sys.argv[1]), os.path.join(sys.argv[2], "state.pt"), int(sys.argv[3])
images, labels = (torch.from_numpy(found) for found in load_digits(return_X_y=True))
images, model = images.float() / 16.0, Sequential(Linear(64, 256), ReLU(), Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
done = torch.load(path) if os.path.exists(path) else {"model": model.state_dict(), "samples": 0}
model.load_state_dict(done["model"])
samples = done["samples"]


def save() -> str:
    torch.save({"model": model.state_dict(), "samples": samples}, path + ".part")
    os.replace(path + ".part", path)
    return path


with scavenger_report(save=save, samples_per_epoch=1536) as report:
    while samples < epochs * 1536:
        rows = (torch.arange(batch) + samples) % 1536
        optimizer.zero_grad()
        loss = cross_entropy(model(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        samples += batch
        report.step(loss=loss.item(), gradients=[p.grad for p in model.parameters()])
        if samples % 1536 < batch:
            right = (model(images[1536:]).argmax(1) == labels[1536:]).float().mean()
            report.epoch(val_accuracy=right.item())
