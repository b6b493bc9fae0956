"""A script whose model is divided over the GPUs of a machine: `torchrun --nproc-per-node 2 fsdp.py`."""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--lr", type=float, default=0.002)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.relu(self.inner(self.norm(x))))


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

    model = nn.Sequential(nn.Linear(64, 128), Block(128), Block(128), nn.Linear(128, 10))
    for layer in model:
        if isinstance(layer, Block):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train(model, optimizer, loader)
        accuracy = evaluate(model, held_out)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: {accuracy:.3f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
