"""Sums of gradients that arrive are those of gradients in shared memory, bit for bit, and take bounded memory."""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from manifests import manifest_of
from plain_keras import one_by_one

from scavenger.elastic.view import SLOTS_PER_WORKER, Piece, Share
from scavenger.train.aggregation import arriving_sums
from scavenger.train.aggregation.arriving_sums import ArrivingSums
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.transport import buckets as cutting
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.buckets import buckets, numbers_of, packed, read, unpacked
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.messages.data import (
    ApplyPart,
    AskBuckets,
    BucketsSent,
    Contributed,
    ExpectPieces,
    GradientBucket,
    SumsFormed,
)
from scavenger.train.transport.messages.values import Manifest, TensorSpec
from scavenger.train.transport.rows import Rows
from scavenger.train.transport.shared_memory import Block
from scavenger.train.worker.results import Results

pytestmark = pytest.mark.slow

_STEPS = 4
_SGD = '{"class_name": "SGD", "config": {"learning_rate": 0.1}}'
_ADAM = '{"module": "keras.optimizers", "class_name": "Adam", "config": {"learning_rate": 0.1}}'
_CLIPPED = '{"class_name": "Adam", "config": {"learning_rate": 0.1, "clipnorm": 0.5}}'


def manifest(dtype: str, optimizer: str) -> Manifest:
    tensors = [
        TensorSpec("table", (60, 4), dtype, "trainable"),
        TensorSpec("matrix", (9, 7), dtype, "trainable"),
        TensorSpec("bias", (3,), dtype, "trainable"),
        TensorSpec("single", (), dtype, "trainable"),
        TensorSpec("mean", (50,), dtype, "mean"),
        TensorSpec("seed", (2,), "int64", "first"),
    ]
    return manifest_of(tensors, optimizer, metrics=((2,),))


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "BUCKET_BYTES", 128)
    monkeypatch.setattr(cutting, "_BUDGET_BYTES_MIN", 300)
    monkeypatch.setattr(arriving_sums, "_ASK_AGAIN_S", -1.0)


class Job:
    """An aggregator, workers of which some do not share its memory, and links that lose messages.

    Attributes:
        apart: The aggregator's shards: of the job, and of one with the same gradients in shared memory.
    """

    def __init__(
        self,
        seed: int,
        *,
        dtype: str = "float32",
        optimizer: str = _SGD,
        parts: int = 1,
        in_place: bool = False,
    ) -> None:
        self.random, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.layout = Layout.of(manifest(dtype, optimizer), parts)
        self.index = parts - 1
        self.fds = [create_block(), create_block()]
        start = self.numbers.normal(size=400)
        self.apart = self._shard(self.fds[0], start, in_place=in_place)
        self.shared = self._shard(self.fds[1], start)
        self.workers = self.random.randint(1, 4)
        self.remote = {i for i in range(self.workers) if self.random.random() < 0.7}
        self.blocks = [
            Block(self._new_fd(), self.layout) if i in self.remote else self.apart.block
            for i in range(self.workers)
        ]
        self.results = [Results(block) for block in self.blocks]
        self.loss = self.random.choice((0.0, 0.2))
        self.under_way: deque[tuple[int, Any, bytes | None]] = deque()
        self.formed: list[SumsFormed] = []
        self.sums = self._sums()
        self.number = self.kept_bytes = 0
        self.pieces = 0

    def _new_fd(self) -> int:
        self.fds.append(create_block())
        return self.fds[-1]

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        vars(self).clear()  # each mapping has a descriptor of its own, which what refers to itself would keep

    def _shard(self, fd: int, start: Any, *, in_place: bool = False) -> ModelShard:
        shard = ModelShard(fd, self.layout, self.index, in_place=in_place)
        for n, array in zip(
            self.layout.parts[self.index], shard.held.section(0, shard.held.numbers), strict=True
        ):
            array[...] = start[n : n + array.size].reshape(array.shape)
        shard.begin()
        return shard

    def _sums(self) -> ArrivingSums:
        own = {f"w{i}" for i in range(self.workers) if i not in self.remote}
        return ArrivingSums(
            self.apart,
            own,
            ask=lambda worker, ask: self.send(int(worker[1:]), ask, None),
            formed=self.formed.append,
            ready=self._apply,
        )

    def send(self, worker: int, message: Any, data: Any) -> None:
        if self.random.random() >= self.loss:
            self.under_way.append((worker, message, None if data is None else bytes(data)))

    def carry(self) -> None:
        while self.under_way:
            worker, message, data = self.under_way.popleft()
            match message:
                case AskBuckets():
                    self.results[worker].answer(
                        self.index, message, lambda m, d, i=worker: self.send(i, m, d)
                    )
                case Contributed():
                    self.sums.contributed(f"w{worker}", message)
                case GradientBucket():
                    self.sums.take(f"w{worker}", message, data or b"")
                case BucketsSent():
                    self.sums.answered(f"w{worker}", message)
            kept = sum(len(payload) for _, payload in self.sums._kept.values())
            self.kept_bytes = max(self.kept_bytes, kept)

    # ---- a step --------------------------------------------------------------------------------------------

    def step(self, step: int) -> None:
        """Form sums, sometimes of two lists one after the other, and apply the step in both jobs."""
        pieces = self._pieces()
        if self.random.random() < 0.3:  # a worker is lost meanwhile, and its pieces go to others
            self._compute(step, pieces[: len(pieces) // 2])
            self.carry()
            pieces = pieces[: len(pieces) // 2] + self._pieces(pieces[len(pieces) // 2 :])
        results = self._compute(step, pieces)
        if self.random.random() < 0.2:  # the aggregator is restarted
            self.formed.clear()
            self.sums = self._sums()
        self.order = ApplyPart(
            step,
            1,
            1.0,
            tuple((p.number, r.samples, p.slot, r.rows) for p, r in zip(pieces, results, strict=True)),
            self.number,
            tuple(r.held for r in results),
        )
        self.answers = []
        if not self.sums.needs_sums(self.order):
            self.sums.end(self.order)
            self.answers.append(self.apart.apply(self.order))
        else:
            self._apply(self.order)
        for _ in range(200):
            if self.answers:
                break
            self.sums.tick()
            self.carry()
        assert self.answers
        assert self.shared.apply(self.order).mean_sqnorm == pytest.approx(
            self.answers[0].mean_sqnorm, rel=1e-6
        )

    def _apply(self, order: ApplyPart) -> None:
        if (means := self.sums.prepare(order)) is not None:
            self.answers.append(self.apart.apply(order, means))

    def _pieces(self, instead: list[Piece] | None = None) -> list[Piece]:
        made = []
        used = self.random.randint(1, 5) if instead is not None else 0
        shares = [p.share for p in instead] if instead is not None else None
        for i in range(self.workers) if shares is None else range(len(shares)):
            worker = self.random.randrange(self.workers) if shares is not None else i
            share = Share(10 * i, 10 * i + self.random.randint(1, 10)) if shares is None else shares[i]
            self.pieces += 1
            slot = worker * SLOTS_PER_WORKER + (used + i if shares is not None else 0)
            made.append(Piece(self.pieces, share, f"w{worker}", slot))
        return made

    def _compute(self, step: int, pieces: list[Piece]) -> list[Contributed]:
        self.number += 1
        listed = tuple((p.number, p.slot, p.share.samples) for p in pieces)
        self.sums.expect(ExpectPieces(step, 1, self.number, self.workers, listed, ()))
        results = []
        for piece in self.random.sample(pieces, len(pieces)):
            worker = int(piece.worker[1:])
            known = self.results[worker]._computed.get(("train", step, piece.number))
            result = known if isinstance(known, Contributed) else self._gradient(step, piece, worker)
            senders = {self.index: lambda m, d, i=worker: self.send(i, m, d)}
            self.results[worker].push(result, senders if worker in self.remote else {}, self.workers)
            self.send(worker, result, None)
            results.append((piece.number, result))
        self.carry()
        by_number = dict(results)
        return [by_number[piece.number] for piece in pieces]

    def _gradient(self, step: int, piece: Piece, worker: int) -> Contributed:
        """Write a gradient to the worker's slot, and to the same slot of the job that shares all memory."""
        at, rows = self.layout.slot_at(piece.slot), list[tuple[int, int]]()
        for block in (self.blocks[worker], self.shared.block):
            block.range(at, self.layout.state_bytes)[:] = bytes(self.layout.state_bytes)
        dense = [self.numbers.normal(size=array.shape) for array in self.shared.block.tensors(at)]
        sparse = self.random.random() < 0.6
        some = Rows(
            np.sort(self.numbers.choice(60, self.random.randint(0, 20), replace=False)),
            np.asarray(self.numbers.normal(size=(0, 4))),
        )
        for block in (self.blocks[worker], self.shared.block):
            for array, value in zip(block.tensors(at), dense, strict=True):
                array[...] = value
            for array in block.metrics(at):
                array[...] = piece.number
            if sparse:
                dtype = self.layout.manifest.tensors[0].dtype
                given = Rows(some.indices, np.asarray(dense[0][some.indices], dtype))
                rows = list(block.write_sparse(at, 0, given))
        result = Contributed(
            1, step, piece.number, piece.share.samples, (), 0.1, 0.0, 1.0, 0.0, rows=tuple(sorted(rows))
        )
        if worker not in self.remote:
            result = msgspec.structs.replace(result, held=(self.index,))
        self.results[worker].add_gradient(step, piece, result)
        return result


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    made: list[Job] = []
    yield made
    for job in made:
        job.close()


@pytest.mark.parametrize(
    ("dtype", "optimizer", "parts", "in_place"),
    [
        ("float32", _SGD, 1, False),
        ("float32", _CLIPPED, 2, False),
        ("float32", _CLIPPED, 2, True),
        ("float64", _SGD, 2, False),
        ("float64", _ADAM, 2, True),
        ("float16", _SGD, 1, False),
        ("float16", _ADAM, 1, True),
    ],
)
@one_by_one()
def test_no_bit_tells_which_workers_shared_memory_and_what_was_lost(
    dtype: str, optimizer: str, parts: int, in_place: bool, jobs: list[Job]
) -> None:
    for seed in range(4):
        job = Job(seed, dtype=dtype, optimizer=optimizer, parts=parts, in_place=in_place)
        jobs.append(job)
        for step in range(1, _STEPS + 1):
            job.step(step)
            apart, shared = (
                shard.held.section(step, shard.held.numbers) for shard in (job.apart, job.shared)
            )
            for a, b in zip(apart, shared, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}, step {step}")
            for a, b in zip(
                job.apart.held.optimizer.slots(step), job.shared.held.optimizer.slots(step), strict=True
            ):
                np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}, step {step}")
            slots = [slot for _, _, slot, _ in job.order.pieces]
            if job.index == 0:
                for shard in (job.apart, job.shared):
                    shard.sum_metrics(step, slots, begins_epoch=True)
                assert job.apart.metric_sums(step)[0].tolist() == job.shared.metric_sums(step)[0].tolist()
        assert job.kept_bytes <= 300 + 3 * 128


def test_what_is_no_bucket_is_refused(jobs: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(1)
    jobs.append(job)
    bucket = buckets(job.layout)[0]
    data, none = bytes(bucket.bytes), bytes(8)
    for counts, payload in [
        ((), data + b"\0"),
        ((), b""),
        ((1,), none),
        ((1 << 60,), data),
        ((0, 0), b""),
        ((2,), np.array([1, 1], np.int64).tobytes() + bytes(32)),
        ((1,), np.array([-1], np.int64).tobytes() + bytes(16)),
        ((1,), np.array([1 << 61], np.int64).tobytes() + bytes(16)),
        ((1,), np.array([60], np.int64).tobytes() + bytes(16)),
    ]:
        with pytest.raises(ValueError, match=r"."):
            unpacked(bucket, counts, payload)
        job.sums.take("w0", GradientBucket(1, 0, counts), payload)
        assert "rejected a bucket" in capsys.readouterr().out
    job.sums.take("w0", GradientBucket(1, 1 << 40), data)
    job.sums.take("w0", GradientBucket(1, -1), data)
    assert not job.sums._kept


def test_each_bucket_is_with_the_holder_of_its_segments_under_any_map(jobs: list[Job]) -> None:
    job = Job(3, parts=3)
    jobs.append(job)
    layout, every = job.layout, buckets(job.layout)
    for holders in (layout.holders, [1] * len(layout.buckets), [n % 3 for n in range(len(layout.buckets))]):
        moved = layout.moved(holders, 1)
        numbers = [numbers_of(moved, every, index) for index in range(3)]
        assert sorted(number for some in numbers for number in some) == list(range(len(every)))
        for part, some in zip(moved.parts, numbers, strict=True):
            assert {one.segment for number in some for one in every[number].parts} == {*part}
        assert len(every) - 1 in numbers[0], "the metric sums"


def test_buckets_cover_the_shard_once_and_are_packed_as_they_are_read(jobs: list[Job]) -> None:
    job = Job(3)
    jobs.append(job)
    covered = []
    at, block = job.layout.slot_at(0), job.shared.block
    result = job._gradient(1, Piece(1, Share(0, 4), "w0", 0), 0)
    for bucket in buckets(job.layout):
        assert bucket.bytes <= 128 + 64
        covered += [(part.segment, part.begin, part.end) for part in bucket.parts]
        if bucket.parts:
            counts, data = packed(block, at, result.rows, bucket)
            sent, there = unpacked(bucket, counts, bytes(data)), read(block, at, result.rows, bucket)
            for part, a, b in zip(bucket.parts, sent, there, strict=True):
                shape = ((part.end - part.begin) // part.width, part.width) if part.width else (-1,)
                dense = [
                    Rows(v.indices - part.begin // part.width, v.values).dense(shape)
                    if isinstance(v, Rows)
                    else v.reshape(shape)
                    for v in (a, b)
                ]
                np.testing.assert_array_equal(*dense)
    for number in job.layout.parts[0]:
        mine = sorted((begin, end) for segment, begin, end in covered if segment == number)
        ends = [0, *(end for _, end in mine)]
        assert [begin for begin, _ in mine] == ends[:-1]
        begin, end = job.layout.segments[number].elements
        assert ends[-1] == end - begin
