"""Training scripts in JAX, made elastic by `prepare`, the loop over its loader, `step` and `log`.

::

    import scavenger.jax as elastic

    state, loader = elastic.prepare(state, (x, y), batch_size=64)
    for epoch in range(args.epochs):
        for x, y in loader:
            loss, gradients = gradient(state["params"], x, y)  # jitted, of this worker's samples
            state = elastic.step(update, state, gradients)     # update(state, mean of the gradients), jitted
        elastic.log(val_accuracy=accuracy(state["params"]))

`scavenger optimize train.py --target val_accuracy=0.98` trains it on a number of workers and with a batch size that
change while it trains. With `python train.py`, one process trains on all samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from scavenger.sdk import script

__all__ = ["log", "lr_scale", "prepare", "step"]

State = TypeVar("State")


def prepare(state: State, data: Any, *, batch_size: int | None = None, seed: int = 0) -> tuple[State, Any]:
    """Make a state and training data those of this worker, and wait until it is a member of the job.

    Args:
        state: A pytree of all that training changes: parameters, the optimizer's state, statistics, keys.
        data: Arrays whose rows are the samples, alone, in a tuple or a dictionary; or a `DataLoader` of PyTorch.
        batch_size: Rows of a batch; in a job, of its search's default. None for a `DataLoader`.
        seed: Of the order of the rows, which is another one in each epoch; in a job, its own seed counts.

    Returns:
        The state to begin with, which is that of the others if they have begun; and a loader, whose batches are made as
        the data are.

    Raises:
        NotSupportedError: If one of them cannot be trained in a job; says where, and what to do.
        TrainingCodeError: If the call itself is wrong, or its place in the script.
    """
    run = script.current()
    if run is None:
        from scavenger.sdk.rows import Rows

        return state, data if batch_size is None else Rows(data, batch_size, seed)
    from scavenger.sdk.jax_script import JaxScript  # imports JAX, as the script has

    return cast("tuple[State, Any]", run.prepare(lambda: JaxScript(run, state, data, batch_size)))


def step(update: Callable[[State, Any], State], state: State, gradients: Any) -> State:
    """Train with a batch: `update(state, mean)` with the mean of the workers' gradients, weighted by their samples.

    Outside of a job, the mean is that of this process.

    Args:
        update: Returns the new state, the same one at every worker.
        state: What `prepare` or the last step has returned.
        gradients: A pytree of means over this worker's samples of the batch.
    """
    run = script.current()
    if run is None:
        return update(state, gradients)
    return cast("State", run.ready("step").step(update, state, gradients))


def lr_scale() -> float:
    """What to multiply the learning rate by, by `elastic.lr_scaling` of the job file; 1 outside of a job."""
    run = script.current()
    return 1.0 if run is None else float(run.ready("lr_scale").scale())


def log(**metrics: Any) -> None:
    """See `scavenger.torch.log`."""
    run = script.current()
    if run is not None:
        run.ready("log").log(metrics)
