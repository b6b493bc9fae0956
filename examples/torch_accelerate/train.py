"""`plain.py` as a job: `scavenger optimize train.py --target val_accuracy=0.97`."""

import argparse

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import scavenger.torch as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=20)
args = parser.parse_args()

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data / 16).float(), torch.tensor(digits.target))
training, validation = torch.utils.data.random_split(data, [1437, 360])
loader = DataLoader(training, args.batch_size, shuffle=True)
x_val, y_val = validation[:]

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))
model, optimizer, loader, scheduler = elastic.prepare(model, optimizer, loader, scheduler)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

for epoch in range(args.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    with torch.no_grad():
        accuracy = (model(x_val).argmax(1) == y_val).float().mean().item()
    elastic.log(val_accuracy=accuracy)
    accelerator.print(f"epoch {epoch + 1}: {accuracy:.3f}")
