"""A script in the public style: plain PyTorch, with what most scripts have; in a job, by three calls."""

import argparse
import contextlib
import os
import signal
import time

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import scavenger.torch as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=24)
parser.add_argument("--shuffle", action="store_true")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--samples", type=int, default=500)
parser.add_argument("--save", default="")
parser.add_argument("--ddp", action="store_true")
parser.add_argument("--device", default="cpu")
parser.add_argument("--scaler", action="store_true")
parser.add_argument("--at-once", type=int)
parser.add_argument("--pause", type=float, default=0.0)
parser.add_argument("--patience", type=int, default=100)
parser.add_argument("--average", action="store_true")
parser.add_argument("--divided", action="store_true")
parser.add_argument("--sampler", action="store_true")
parser.add_argument("--fail", default="")  # at which rank
parser.add_argument("--die", default="")  # the last rank of one worker: the file tells whether it has


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
        self.head = nn.Linear(16, 3)
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))  # as for attention

    def forward(self, x):
        for layer in (self.body, self.head):
            x = layer(x)
        return x


def data(samples):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long() + (x[:, 3] > 0).long())


def build(args):
    if args.device == "tiny":
        import torch_device  # noqa: F401 - registers it
    torch.manual_seed(3)
    model = Model().double().to(args.device)
    train, size, sampler = data(args.samples), args.batch_size, None
    if args.scaler:
        train.tensors[0][100] = torch.nan  # a scaler leaves its steps out
    if args.ddp:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        sampler = DistributedSampler(train, shuffle=False)
        size //= torch.distributed.get_world_size()
    if args.divided:
        torch.distributed.init_process_group("gloo")
        for part in (model.body[0], model):
            fully_shard(part)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.02)
    if args.sampler:
        sampler = DistributedSampler(train, *(() if args.divided else (1, 0)))
        size //= sampler.num_replicas
    given = {"sampler": sampler, "shuffle": args.shuffle, "num_workers": args.workers, "collate_fn": collate}
    loader = DataLoader(train, size, **given)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.02, epochs=args.epochs, steps_per_epoch=len(loader)
    )
    return model, optimizer, loader, scheduler


def collate(rows):
    return {"x": torch.stack([x for x, _ in rows]), "y": torch.stack([y for _, y in rows])}


def die_once(file):
    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        with contextlib.suppress(FileExistsError), open(file, "x"):
            os.kill(os.getpid(), signal.SIGKILL)


def train_epoch(model, optimizer, loader, scheduler, scaler, average, epoch, device, fail):
    getattr(model, "module", model).body.requires_grad_(epoch >= 1)  # frozen at first
    for number, batch in enumerate(loader):
        loss = nn.functional.cross_entropy(model(batch["x"].to(device)), batch["y"].to(device))
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        if average is not None:
            average.update_parameters(model)
        elastic.log(loss=loss.item())
        if os.environ.get("RANK") == fail:
            raise ValueError(f"batch {number} is not good")


def main():
    args = parser.parse_args()
    model, optimizer, loader, scheduler = build(args)
    scaler = torch.amp.GradScaler(args.device, init_scale=1024.0, growth_interval=7, enabled=args.scaler)
    average = None
    if args.average:
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    more = [*([scaler] if args.scaler else []), *([average] if args.average else [])]
    model, optimizer, loader, scheduler, *_ = elastic.prepare(
        model, optimizer, loader, scheduler, *more, at_once=args.at_once
    )
    waited = 0
    for epoch in range(args.epochs):
        train_epoch(model, optimizer, loader, scheduler, scaler, average, epoch, args.device, args.fail)
        if args.die and epoch == 1:
            die_once(args.die)
        time.sleep(args.pause)
        optimizer.param_groups[0]["weight_decay"] = 0.02 / (epoch + 2)
        elastic.log(epoch=epoch, decay=optimizer.param_groups[0]["weight_decay"])
        waited += 1  # noqa: SIM113 - the epochs of this process
        if waited == args.patience:
            break
    if args.save:
        averages = {} if average is None else {f"average/{k}": v for k, v in average.state_dict().items()}
        torch.save(getattr(model, "module", model).state_dict() | averages, args.save)


if __name__ == "__main__":
    main()
