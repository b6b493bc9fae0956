"""A plain DistributedDataParallel script on handwritten digits; `scavenger optimize job.yaml` runs it as a command."""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

from scavenger.sdk.report import scavenger_report

options = argparse.ArgumentParser()
options.add_argument("--batch", type=int)
options.add_argument("--folder")
options.add_argument("--epochs", type=int)
args = options.parse_args()

dist.init_process_group("gloo")
rank, workers, path = dist.get_rank(), dist.get_world_size(), os.path.join(args.folder, "state.pt")
images, labels = load_digits(return_X_y=True)
mixed = np.random.default_rng(0).permutation(len(images))
images, labels = torch.from_numpy(images[mixed] / 16.0).float(), torch.from_numpy(labels[mixed])
model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
ddp, optimizer = (
    nn.parallel.DistributedDataParallel(model),
    torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
)
epoch = done = 0  # `done`: samples of the epoch so far, so that another batch size goes on from there
if os.path.exists(path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    epoch, done = state["epoch"], state["done"]


def save() -> str:
    now = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "done": done}
    torch.save(now, path + ".part")
    os.replace(path + ".part", path)
    return path


with scavenger_report(save=save, samples_per_epoch=1536) as report:
    while epoch < args.epochs:
        order = torch.from_numpy(np.random.default_rng(epoch).permutation(1536))
        while done < 1536:
            rows = order[done : done + args.batch * workers][rank::workers]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            done = min(1536, done + args.batch * workers)
            report.step(loss=loss.item(), gradients=[p.grad for p in model.parameters()])
        epoch, done = epoch + 1, 0
        with torch.no_grad():
            accuracy = (model(images[1536:]).argmax(1) == labels[1536:]).float().mean().item()
        report.epoch(val_accuracy=accuracy)
dist.destroy_process_group()
