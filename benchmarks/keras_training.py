"""The same training twice, in one process: by the code of workers and aggregators, and by `fit` of plain Keras."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import msgspec
import numpy as np
import numpy.typing as npt

from scavenger.sdk import KerasJob
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.messages.data import ApplyPart
from scavenger.train.transport.messages.requests import RunCallbacks
from scavenger.train.worker.memory import WorkerMemory
from scavenger.train.worker.program import Program
from scavenger.train.worker.saved_optimizer import SavedOptimizer

SEED = 3
STEPS = 4
Array = npt.NDArray[Any]


def in_pieces(
    program: Program, pieces: Sequence[tuple[int, int]], path: Path | None = None, *, steps: int = STEPS
) -> list[Array]:
    """Weights and states after steps as workers and two aggregators take them, in one process; also saved to `path`.

    Each step is an epoch, at whose end the job's callbacks run, as in a worker.

    Args:
        program: The model and data.
        pieces: First sample and end of each worker's part of a step; together the samples of every step.
        path: Where the model is saved at the end, if anywhere.
        steps: Number of steps.
    """
    fd = create_block()
    try:
        memory = WorkerMemory(fd, program.manifest, 2, program)
        layout, block = memory.layout, memory.block
        parts = [ModelShard(fd, layout, index) for index in range(2)]
        for target, value in zip(block.tensors(layout.state_at(0)), program.initial_state(), strict=True):
            target[...] = value
        if (earlier := program.initial_slots()) is not None:
            SavedOptimizer(fd, layout).write_initial(earlier)
        for part in parts:
            part.begin()
        callbacks = _Callbacks(program, steps)
        for step in range(1, steps + 1):
            weights = [array.copy() for array in block.tensors(layout.state_at(step - 1))]
            orders, sums = [], [np.zeros(shape) for shape in program.manifest.metrics]
            for slot, (start, stop) in enumerate(pieces):
                result = program.gradient(
                    weights,
                    program.train.batch(np.arange(start, stop)),
                    seed=SEED,
                    position=(step - 1) * pieces[-1][1] + start,
                    loss_scale=parts[0].loss_scale(step - 1),
                )
                orders.append((slot, stop - start, slot, memory.write(result, slot).rows))
                sums = [total + value for total, value in zip(sums, result.metrics, strict=True)]
            rate = program.rate(step - 1, 0, 0) * callbacks.rate_scale
            for part in parts:
                part.apply(ApplyPart(step, 1, rate, tuple(orders)))
            after = [array.copy() for array in block.tensors(layout.state_at(step))]
            if callbacks.ran_after(step, after, SavedOptimizer(fd, layout), sums):
                for part in parts:
                    part.keep_best(step)
            if callbacks.stopped:
                break
        for part in parts:
            part.finalise(step, best=callbacks.keep)
        final = [array.copy() for array in block.tensors(layout.state_at(step))]
        if path is not None:
            program.save(final, path, SavedOptimizer(fd, layout).state(step, 1.0))
        callbacks.end()
        return final
    finally:
        os.close(fd)


class _Callbacks:
    """The runs of a job's callbacks, if it has any, where every epoch has one step.

    Attributes:
        rate_scale: The learning rate that they have set, over the compiled one.
        stopped: Whether they have stopped training.
        keep: Whether they decide which weights are kept.
    """

    def __init__(self, program: Program, epochs: int) -> None:
        self._program, self._epochs = program, epochs
        self._request = RunCallbacks(1, -1, 0, {}, epochs, False, "", 1.0)
        self.rate_scale, self.stopped, self.keep = 1.0, False, False
        if program.callbacks.names:
            self._run(self._request)

    def ran_after(
        self, step: int, weights: Sequence[Array], optimizer: SavedOptimizer, sums: Sequence[Array]
    ) -> bool:
        """Run the callbacks after a step; returns whether its weights are the best so far."""
        if not self._program.callbacks.names:
            return False
        program, held_out = self._program, self._program.manifest.validation_size
        program.restore(weights, optimizer.state(step, 1.0))
        metrics = program.summarise(sums, program.evaluate(weights, 0, held_out, max(1, held_out)))
        program.restore(weights, optimizer.state(step, 1.0))
        state, last = self._request.state, step == self._epochs
        return self._run(
            RunCallbacks(1, step - 1, step, metrics, self._epochs, last, state, self.rate_scale, batch=0)
        )

    def end(self) -> None:
        """End the callbacks' training."""
        if self._program.callbacks.names:
            self._program.callbacks.end(self._request)

    def _run(self, request: RunCallbacks) -> bool:
        answer = self._program.callbacks.run(request)
        self._request = msgspec.structs.replace(request, state=answer.state)
        self.rate_scale, self.stopped = answer.rate_scale, bool(answer.stopped_by)
        self.keep = self.keep or answer.keep_best is not None
        return bool(answer.keep_best)


def by_job(
    build: Callable[[], Any],
    train: Any,
    *,
    steps: int = STEPS,
    pieces: int = 2,
    path: Any = None,
    **arguments: Any,
) -> tuple[Program, list[Array]]:
    """Train as workers and two aggregators do; returns the program, and the weights as `get_weights` has them.

    Args:
        build: Makes the model.
        train: The data; each step uses all samples once.
        steps: Number of steps.
        pieces: 2 unequal pieces for a step, or 1.
        path: Where the model is saved at the end, if anywhere.
        arguments: More arguments of `KerasJob`; a function makes its value.
    """
    keras.utils.set_random_seed(SEED)
    program = Program(KerasJob(build(), train, **made(arguments)))
    samples = len(program.train)
    bounds = (0, samples * 5 // 9, samples) if pieces == 2 else (0, samples)
    final = in_pieces(program, tuple(pairwise(bounds)), path, steps=steps)
    for variable, value in zip(program.variables, final, strict=True):
        variable.assign(value)
    return program, program.model.get_weights()


def by_fit(build: Callable[[], Any], train: Any, *, steps: int = STEPS, **arguments: Any) -> Any:
    """Train with `fit`, all samples in one batch, or in those that the data makes; returns the model."""
    keras.utils.set_random_seed(SEED)
    model, own = build(), made(arguments)
    if not isinstance(train, tuple):
        model.fit(train, epochs=steps, verbose=0, **own)
        return model
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(train)
    count = len(keras.tree.flatten(x)[0])
    options = {"batch_size": count, "epochs": steps, "shuffle": False, "verbose": 0, **own}
    model.fit(x, y, sample_weight=sample_weight, **options)
    return model


def made(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of which some, such as callbacks, have to be made for each training."""
    return {name: value() if callable(value) else value for name, value in arguments.items()}


def furthest(got: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest difference of two lists of arrays, each relative to the largest value of its array."""
    apart = 0.0
    for one, other in zip(got, expected, strict=True):
        a, b = np.asarray(one, "float64"), np.asarray(other, "float64")
        apart = max(apart, float(np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-2)))
    return apart
