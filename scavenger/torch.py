"""Training scripts in PyTorch, made elastic by three calls: `prepare`, the loop over its loader, and `log`.

::

    import scavenger.torch as elastic

    model, optimizer, loader = elastic.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        elastic.log(val_accuracy=accuracy(model))

`scavenger optimize train.py --target val_accuracy=0.98` trains it on a number of workers and with a batch size that
change while it trains. With `python train.py` or `torchrun train.py`, the calls do nothing.
"""

from __future__ import annotations

from typing import Any

from scavenger.sdk import script

__all__ = ["log", "prepare"]


def prepare(*objects: Any, at_once: int | None = None) -> Any:
    """Make model, optimizer and loader those of this worker, and wait until it is a member of the job.

    Outside of a job, they are returned as they are.

    Args:
        objects: In any order: a `torch.nn.Module`, its optimizer, and the `DataLoader` of the training data; also a
            scheduler of the learning rate, a `GradScaler`, and modules beside the model that are not trained, as an
            `AveragedModel`, if there are any. Or one trainer of Transformers or
            Lightning alone, before it trains.
        at_once: Most samples that fit a worker's memory in one forward and backward pass. A worker whose share of a
            batch is larger goes through the loop several times for it: only the last time, there are gradients for the
            optimizer, of the whole share.

    Returns:
        What was given, in the same order: model, optimizer, scheduler and scaler are the same objects, but for a
        `DistributedDataParallel`, whose module is returned. The loader has the same samples in the batches of the job.

    Raises:
        NotSupportedError: If one of them cannot be trained in a job; says where, and what to do.
        TrainingCodeError: If the call itself is wrong, or its place in the script.
    """
    run = script.current()
    if run is None:
        return objects if len(objects) != 1 else objects[0]
    from scavenger.sdk.torch_script import prepared  # imports PyTorch, as the script has
    from scavenger.sdk.torch_trainers import trainer_of

    if len(objects) == 1 and (trainer := trainer_of(objects[0])) is not None:
        return run.prepare(lambda: trainer(run, objects[0], at_once))
    return run.prepare(lambda: prepared(run, objects, at_once))


def log(**metrics: float) -> None:
    """Tell metrics of the model, such as `val_accuracy`, after the loop over the loader; all workers tell the same.

    `loss`, told in that loop, is the loss of the batch, of which the job forms the mean over the epoch. Outside of a
    job, nothing is done.
    """
    run = script.current()
    if run is not None:
        run.ready("log").log(metrics)
