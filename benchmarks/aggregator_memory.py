"""Memory of an aggregator, with workers that share its memory and with workers of other hosts."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Benchmark, Result, Spread
from scavenger.elastic.membership import worker_name, worker_slot
from scavenger.models.aggregation import held_models
from scavenger.train.aggregation.arriving_sums import ArrivingSums
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.buckets import buckets, packed
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.messages.data import (
    ApplyPart,
    AskBuckets,
    BucketsSent,
    Contributed,
    ExpectPieces,
    GradientBucket,
)
from scavenger.train.transport.messages.values import Manifest, TensorSpec
from scavenger.train.transport.shared_memory import Block

_SHAPES = ((4000, 4000), (4000, 4000))
_MODEL_BYTES = 4 * sum(rows * width for rows, width in _SHAPES)
_WORKERS = (2, 64)
_SHARED = 2
_SAMPLES = 4
_AIM, _AIM_MODELS = 1.2, 5.0
_SAVING, _SAVING_BEST = "in place, checkpoint", "in place, checkpoint, best weights kept"


def _manifest() -> Manifest:
    adam = {"module": "keras.optimizers", "class_name": "Adam", "config": {"learning_rate": 0.001}}
    return Manifest(
        tensors=tuple(TensorSpec(f"m{i}", shape, "float32", "trainable") for i, shape in enumerate(_SHAPES)),
        metrics=(),
        optimizer=json.dumps({**adam, "registered_name": None}),
        architecture="",
        parameters=_MODEL_BYTES // 4,
        dataset_size=1,
        validation_size=0,
        sample_bytes=1,
        metric_names=(),
    )


class _Job:
    """An aggregator in this process, and workers that all have the same gradient."""

    def __init__(self, workers: int, *, in_place: bool) -> None:
        self.layout, self.fd, self.source_fd = Layout.of(_manifest()), create_block(), create_block()
        self.shard = ModelShard(self.fd, self.layout, 0, in_place=in_place)
        for array in self.shard.block.tensors(self.layout.state_at(0)):
            array[...] = 1.0
        self.shard.begin()
        self.workers = workers
        self.source, self.at = Block(self.source_fd, self.layout), self.layout.slot_at(0)
        random = np.random.default_rng(1)
        for array in self.source.tensors(self.at):
            array[...] = random.standard_normal(array.shape, dtype=np.float32)
        self._buckets = buckets(self.layout)
        self._under_way: deque[tuple[str, GradientBucket, bytes] | tuple[str, BucketsSent, None]] = deque()
        self._sums = ArrivingSums(
            self.shard, set(), ask=self._asked, formed=lambda formed: None, ready=lambda order: None
        )

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.source_fd)

    def _asked(self, worker: str, ask: AskBuckets) -> None:
        for number in ask.buckets:
            counts, data = packed(self.source, self.at, (), self._buckets[number])
            # a copy, as it lies in the memory of a socket
            self._under_way.append((worker, GradientBucket(ask.piece, number, counts), bytes(data)))
        self._under_way.append((worker, BucketsSent(ask.piece, ask.question), None))

    def step(self, step: int, *, late: bool) -> None:
        """All workers contribute; `late`: the first of the list as the last."""
        names = [worker_name(index) for index in range(self.workers)]
        numbers = [step * self.workers + index for index in range(self.workers)]
        pieces = tuple((n, worker_slot(name), _SAMPLES) for n, name in zip(numbers, names, strict=True))
        self._sums.expect(ExpectPieces(step, 1, step, 0, pieces, ()))
        for index in range(self.workers - 1, -1, -1) if late else range(self.workers):
            said = Contributed(1, step, numbers[index], _SAMPLES, (), 0.1, 0.0, 1.0, 0.0)
            self._sums.contributed(names[index], said)
            self._carry()
        order = ApplyPart(step, 1, 1.0, tuple((n, _SAMPLES, slot, ()) for n, slot, _ in pieces), step)
        means = self._sums.prepare(order)
        assert means is not None
        assert self.shard.apply(order, means).finite

    def step_in_slots(self, step: int) -> None:
        """All workers share the memory."""
        orders = []
        for index in range(self.workers):
            slot = worker_slot(worker_name(index))
            at, end = self.layout.slot_at(slot), self.layout.weights_bytes
            self.shard.block.range(at, end)[:] = self.source.range(self.at, end)
            orders.append((index, _SAMPLES, slot, ()))
        assert self.shard.apply(ApplyPart(step, 1, 1.0, tuple(orders), step)).finite

    def _carry(self) -> None:
        while self._under_way:
            worker, message, data = self._under_way.popleft()
            if isinstance(message, GradientBucket):
                self._sums.take(worker, message, data or b"")
            else:
                self._sums.answered(worker, message)

    @property
    def block_bytes(self) -> int:
        """What the block takes."""
        return os.fstat(self.fd).st_blocks * 512


def _measure(
    workers: int,
    steps: int,
    *,
    shared: bool = False,
    late: bool = False,
    in_place: bool = False,
    checkpoints: CheckpointStore | None = None,
    best: bool = False,
) -> tuple[float, Spread]:
    """Memory over that of the model, and the time of a step.

    With `checkpoints`, a step is applied while one is written; with `best`, the best weights are kept, too.
    """
    job = _Job(workers, in_place=in_place)
    try:
        times: list[float] = []
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for step in range(1, steps + 1):
            begin = time.perf_counter()
            if shared:
                job.step_in_slots(step)
            else:
                job.step(step, late=late)
            times.append(time.perf_counter() - begin)
        if best:
            job.shard.keep_best(steps)
        if checkpoints is not None:
            job.shard.save(checkpoints, steps, "a", best=best, then=lambda saved: None)
            job.step(steps + 1, late=late)
            job.shard.wait_saved()
        private = tracemalloc.get_traced_memory()[1] - before
        return (job.block_bytes + private) / _MODEL_BYTES, Spread.of(times[1:])
    finally:
        tracemalloc.stop()
        job.close()


def run(repetitions: int, work_dir: Path) -> Result:
    """So many steps each, after a first one that touches the memory."""
    cases: list[tuple[str, int, dict[str, Any]]] = [
        ("shared memory", _SHARED, {"shared": True}),
        *(("other hosts", workers, {}) for workers in _WORKERS),
        *(("other hosts, first piece last", workers, {"late": True}) for workers in _WORKERS),
        *(("other hosts, in place", workers, {"in_place": True}) for workers in _WORKERS),
        *(
            (
                name,
                _SHARED,
                {"in_place": True, "best": best, "checkpoints": CheckpointStore(str(work_dir / name))},
            )
            for name, best in ((_SAVING, False), (_SAVING_BEST, True))
        ),
    ]
    rows, figures, memory = [], dict[str, object](), dict[tuple[str, int], float]()
    for name, workers, options in cases:
        times_model, spread = _measure(workers, repetitions + 1, **options)
        rows.append((f"{name}, K = {workers}", f"{times_model:.2f}", spread.text(1e3, 0)))
        figures[f"{name}, {workers}"] = {"times_model": times_model, "step_s": spread}
        memory[name, workers] = times_model
    few, many = (memory["other hosts", workers] for workers in _WORKERS)
    most = max(memory["other hosts, in place", workers] for workers in _WORKERS)
    return Result(
        headers=("workers", "memory, times the model", "step, ms"),
        rows=tuple(rows),
        verdict=f"aim: at most {_AIM} times the memory with K = {_WORKERS[1]} over K = {_WORKERS[0]}: "
        f"{many / few:.2f}; under {_AIM_MODELS:.0f} times the model, where every aggregator has memory of its own: "
        f"{most:.2f}",
        figures={"model_bytes": _MODEL_BYTES, **figures},
        remarks=(
            f"one aggregator, a model of {_MODEL_BYTES / 1e6:.0f} MB, Adam: two states of the weights and of two slots "
            "each are 6; the block's pages and the peak of what is private to the process",
            "in place: every aggregator has memory of its own, so one state of the slots is enough (ADR 47)",
            f"checkpoint: one is written while the next step is applied; what the plan counts with: "
            f"{held_models(2):.2f} with the best weights",
            "in one process, without sockets: workers send what they are asked for at once",
            "shared memory: with each worker's slot; first piece last: the sums wait for the worker of the first piece",
        ),
    )


BENCHMARK = Benchmark("aggregator_memory", 2, run)
