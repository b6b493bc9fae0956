"""The cost of sequencing a step with many workers: the first aggregator's time and messages, without sockets."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.figures import Benchmark, Result, Spread
from scavenger.elastic.barrier import Barrier
from scavenger.elastic.membership import worker_name, worker_slot
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.aggregation.sequencer import Sequencer
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.layout import Layout

__all__ = ["BENCHMARK", "SequencedJob"]

_WORKERS = (10, 100, 1000)
_SAMPLES_PER_WORKER = 4


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
        part = ModelShard(fd, Layout.of(manifest), 0)
        part.begin()
        self._workers = workers
        self._orders: list[tuple[str, m.Order]] = []
        self.sent_bytes = 0
        self._sequencer = Sequencer(
            part,
            Barrier(samples),
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
        )

    def _send(self, worker: str, message: m.Message) -> None:
        self.sent_bytes += len(m.encode(message))
        if isinstance(message, m.Order):
            self._orders.append((worker, message))

    def begin(self) -> None:
        """All workers become members."""
        names = [worker_name(index) for index in range(self._workers)]
        members = tuple(m.MemberBody(name, worker_slot(name)) for name in names)
        batch = self._workers * _SAMPLES_PER_WORKER
        self._sequencer.from_control(m.Announcement(1, members, batch, (), (), 1, 1.0, "the first"))

    def step(self) -> None:
        """Every worker contributes what it was ordered to."""
        orders, self._orders = self._orders, []
        said = [
            (
                worker,
                m.encode(
                    m.Contributed(1, order.step + 1, piece.number, 4, (0,), 0.01, 0.0, 1.0, 0.0),
                ),
            )
            for worker, order in orders
            for piece in order.pieces
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
            times = []
            job.sent_bytes = 0
            for _ in range(repetitions):
                begin = time.perf_counter()
                job.step()
                times.append(time.perf_counter() - begin)
        finally:
            os.close(fd)
        step, sent = Spread.of(times), job.sent_bytes // repetitions
        rows.append((str(workers), step.text(1e3), f"{sent:,}", f"{view_s * 1e3:.0f}", f"{view_bytes:,}"))
        figures[f"workers_{workers}"] = {
            "step_s": step,
            "step_bytes": sent,
            "view_s": view_s,
            "view_bytes": view_bytes,
        }
    return Result(
        headers=("workers", "step, ms", "sent, bytes a step", "new view, ms", "sent with it, bytes"),
        rows=tuple(rows),
        verdict=f"{rows[-1][0]} workers: {rows[-1][1]} ms and {rows[-1][2]} bytes of orders a step",
        figures=figures,
        remarks=(
            "one process, no sockets: decisions, encoding and decoding, and the update of a model of 12 parameters",
            "the answers' encoding, which workers would do, is part of the time",
        ),
    )


BENCHMARK = Benchmark("sequencing", 5, run)
