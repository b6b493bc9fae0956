"""Handwritten digits with DistributedDataParallel: `torchrun --nproc-per-node 2 ddp.py`."""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--lr", type=float, default=0.05)


def evaluate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return right / len(loader.dataset)


def train(model, optimizer, loader) -> None:
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def main() -> None:
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data / 16).float(), torch.tensor(digits.target))
    training, validation = torch.utils.data.random_split(data, [1437, 360])
    sampler = DistributedSampler(training)
    loader = DataLoader(training, args.batch_size // dist.get_world_size(), sampler=sampler)
    held_out = DataLoader(validation, 360)

    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train(model, optimizer, loader)
        accuracy = evaluate(model, held_out)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: {accuracy:.3f}", flush=True)

    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "digits.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
