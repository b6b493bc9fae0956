"""The cost of sequencing a step with many workers: the first aggregator's time and messages, without sockets."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Benchmark, Result, Spread
from scavenger.elastic.barrier import Barrier
from scavenger.elastic.membership import worker_name, worker_slot
from scavenger.elastic.pieces import first_piece
from scavenger.elastic.quarantine import Suspects
from scavenger.elastic.steps import Announce
from scavenger.elastic.view import Member
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.aggregation.sequencer import Sequencer
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.layout import Layout

_WORKERS = (10, 100, 1000)
_SAMPLES_PER_WORKER = 4
_AIM_MS, _AIM_BYTES = 8, 20_000


class _TimedShard(ModelShard):
    """A model shard that measures its own arithmetic, which grows with the model and is no control."""

    spent_s = 0.0

    def apply(self, order: m.ApplyPart, means: Sequence[Any] | None = None) -> m.PartApplied:
        begin = time.process_time()
        try:
            return super().apply(order, means)
        finally:
            self.spent_s += time.process_time() - begin

    def sum_metrics(self, step: int, slots: Sequence[int], *, begins_epoch: bool) -> None:
        begin = time.process_time()
        super().sum_metrics(step, slots, begins_epoch=begins_epoch)
        self.spent_s += time.process_time() - begin


class SequencedJob:
    """A sequencer with a tiny model, and workers that answer at once."""

    def __init__(self, fd: int, workers: int, steps: int) -> None:
        samples = workers * _SAMPLES_PER_WORKER * (steps + 1)
        manifest = m.Manifest(
            tensors=(m.TensorSpec("kernel", (4, 3), "float32", "trainable"),),
            metrics=((2,),),
            optimizer='{"class_name": "SGD", "config": {"learning_rate": 0.1}}',
            architecture="",
            parameters=12,
            dataset_size=samples,
            validation_size=0,
            sample_bytes=1,
            metric_names=(),
        )
        part = _TimedShard(fd, Layout.of(manifest), 0)
        part.begin()
        self._part = part
        self._workers = workers
        self._orders: list[tuple[str, m.Go]] = []
        self.sent_bytes = 0
        self._sequencer = Sequencer(
            part,
            Barrier(samples, suspects=Suspects(samples_max=1)),
            to_worker=self._send,
            to_aggregator=lambda _, message: None,
            report=lambda message: None,
            post=lambda message: None,
            checkpoint=None,
            best_step=0,
            seed=1,
            quarantined=(),
            expect=lambda message: None,
            apply=part.apply,
            loaded=(),
        )

    def _send(self, worker: str, message: m.Message) -> None:
        self.sent_bytes += len(m.encode(message))
        if isinstance(message, m.Go):
            self._orders.append((worker, message))

    @property
    def arithmetic_s(self) -> float:
        """The processor time of everything that has been computed with gradients and weights."""
        return self._part.spent_s

    def begin(self) -> None:
        """All workers become members."""
        names = [worker_name(index) for index in range(self._workers)]
        members = tuple(Member(name, worker_slot(name)) for name in names)
        batch = self._workers * _SAMPLES_PER_WORKER
        self._sequencer.from_control(m.Announcement(Announce(1, members, batch, token=1, reason="the first")))

    def step(self) -> None:
        """Every worker contributes what it was ordered to."""
        orders, first, self._orders = self._orders, first_piece(1), []
        said = [
            (
                worker,
                m.encode(
                    m.Contributed(1, order.step + 1, first + order.piece, 4, (0,), 0.01, 0.0, 1.0, 0.0),
                ),
            )
            for worker, order in orders
        ]
        for worker, data in said:
            self._sequencer.from_worker(worker, m.decode(data))


def run(repetitions: int, work_dir: Path) -> Result:
    """Steps at each number of workers; the first of a view apart, since it brings the view to everybody."""
    rows: list[tuple[str, ...]] = []
    figures: dict[str, object] = {}
    for workers in _WORKERS:
        fd = create_block()
        try:
            job = SequencedJob(fd, workers, repetitions)
            begin = time.perf_counter()
            job.begin()
            view_s, view_bytes = time.perf_counter() - begin, job.sent_bytes
            times, control = [], []
            job.sent_bytes = 0
            for _ in range(repetitions):
                begin, used, before = time.perf_counter(), time.process_time(), job.arithmetic_s
                job.step()
                times.append(time.perf_counter() - begin)
                control.append(time.process_time() - used - (job.arithmetic_s - before))
        finally:
            os.close(fd)
        step, alone, sent = Spread.of(times), Spread.of(control), job.sent_bytes // repetitions
        view = (f"{view_s * 1e3:.0f}", f"{view_bytes:,}")
        rows.append((str(workers), alone.text(1e3), step.text(1e3), f"{sent:,}", *view))
        figures[f"workers_{workers}"] = {
            "control_s": alone,
            "step_s": step,
            "step_bytes": sent,
            "view_s": view_s,
            "view_bytes": view_bytes,
        }
    return Result(
        headers=(
            "workers",
            "control, ms",
            "step, ms",
            "sent, bytes a step",
            "new view, ms",
            "sent with it, bytes",
        ),
        rows=tuple(rows),
        verdict=f"aim: below {_AIM_MS} ms of control for a step of {rows[-1][0]} workers: {rows[-1][1]} ms, "
        f"and below {_AIM_BYTES:,} bytes of orders: {rows[-1][3]}",
        figures=figures,
        remarks=(
            "one process, no sockets; control: processor time of decisions, encoding and decoding; step: time of these "
            "and of the sums and the update of a model of 12 parameters",
            "the answers' encoding, which workers would do, is part of the time",
        ),
    )


BENCHMARK = Benchmark("sequencing", 5, run)
