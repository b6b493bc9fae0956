"""The optimizer's state updated in place is the one beside the old one, bit for bit, in half of its memory."""

from __future__ import annotations

import json
import os
import threading
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from manifests import manifest_of
from waiting import eventually

from scavenger.elastic.barrier import Barrier
from scavenger.elastic.migration import BucketMap, Migration
from scavenger.elastic.pieces import first_piece
from scavenger.elastic.steps import Announce
from scavenger.elastic.view import Member
from scavenger.models.aggregation import WAITING_GRADIENTS, held_models, optimizer_copies
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.aggregation.sequencer import Sequencer
from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.checkpoints.manifest import CheckpointFile, CheckpointManifest
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.rows import Rows


def optimizer(name: str, **config: Any) -> dict[str, Any]:
    return {"module": "keras.optimizers", "class_name": name, "config": {"learning_rate": 0.1, **config}}


_OPTIMIZERS = {
    "Adam": optimizer("Adam", amsgrad=True),
    "averages": optimizer("Adam", use_ema=True),
    "Nesterov": optimizer("SGD", momentum=0.9, nesterov=True),
    "RMSprop": optimizer("RMSprop", momentum=0.5, centered=True),
    "clipped": optimizer("Adam", clipnorm=0.5),
    "rows": optimizer("Adagrad"),
}
_SCALING = {"initial_scale": 8.0, "inner_optimizer": optimizer("SGD", momentum=0.9)}
_SCALED = {"module": "keras.optimizers", "class_name": "LossScaleOptimizer", "config": _SCALING}
_ADAM = _OPTIMIZERS["Adam"]
_STEPS = 5


def model(config: dict[str, Any], rows: int = 300) -> m.Manifest:
    tensors = (m.TensorSpec("table", (rows, 16), "float32", "trainable"),)
    return manifest_of(
        (*tensors, m.TensorSpec("bias", (3,), "float32", "trainable")), json.dumps(config), dataset_size=8
    )


class Job:
    """One aggregator, and a worker whose gradients of the table are sparse in every other step."""

    def __init__(self, config: dict[str, Any], *, in_place: bool, rows: int = 300) -> None:
        self.fd, self.layout = create_block(), Layout.of(model(config, rows))
        self.shard = ModelShard(self.fd, self.layout, 0, in_place=in_place)
        for array in self.shard.block.tensors(self.layout.state_at(0)):
            array[...] = 1.0
        self.shard.begin()

    def step(self, step: int, *, value: float | None = None) -> m.PartApplied:
        random, at = np.random.default_rng(step), self.layout.slot_at(0)
        table, bias = self.shard.block.tensors(at)
        table[...], bias[...] = random.normal(size=table.shape), random.normal(size=3)
        if value is not None:
            table[7, 7] = value
        rows = ()
        if step % 2 == 0:
            some = np.sort(random.choice(len(table), 9, replace=False))
            rows = self.shard.block.write_sparse(at, 0, Rows(some, table[some]))
        return self.shard.apply(m.ApplyPart(step, 1, 1.0, ((step, 4, 0, rows),), step))

    def state(self, step: int) -> list[Any]:
        held = self.shard.held.state(step)
        return [array.copy() for array in (*held.weights, *held.slots)]

    def save(self, store: CheckpointStore, step: int) -> list[m.PartSaved]:
        saved: list[m.PartSaved] = []
        self.shard.save(store, step, "attempt", best=False, then=saved.append)
        return saved


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    made: list[Job] = []
    yield made
    for job in made:
        os.close(job.fd)


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_no_bit_tells_whether_the_optimizer_is_updated_in_place(name: str, jobs: list[Job]) -> None:
    jobs += [Job(_OPTIMIZERS[name], in_place=in_place) for in_place in (True, False)]
    place, beside = jobs
    for step in range(1, _STEPS + 1):
        assert place.step(step).mean_sqnorm == beside.step(step).mean_sqnorm
        for a, b in zip(place.state(step), beside.state(step), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"step {step}")

    now, before = (place.shard.held.state(step) for step in (_STEPS, _STEPS - 1))
    assert all(np.shares_memory(a, b) for a, b in zip(now.slots, before.slots, strict=True))
    assert not any(np.shares_memory(a, b) for a, b in zip(now.weights, before.weights, strict=True))


def test_the_memory_of_one_state_of_the_optimizer_is_saved(jobs: list[Job]) -> None:
    jobs += [Job(_ADAM, in_place=in_place, rows=50_000) for in_place in (True, False)]
    for job in jobs:
        for step in range(1, 4):
            job.step(step)
    place, beside = (os.fstat(job.fd).st_blocks * 512 / (50_000 * 16 * 4) for job in jobs)

    assert place == pytest.approx(1 + 2 + 3, abs=0.1), (
        "the slot, two states of the weights, one of the optimizer"
    )
    assert beside == pytest.approx(1 + 2 + 2 * 3, abs=0.1)


def test_what_is_planned_is_what_is_held_while_a_checkpoint_is_written_with_the_best_weights(
    jobs: list[Job], tmp_path: Path
) -> None:
    jobs.append(Job(_ADAM, in_place=True, rows=50_000))
    (job,) = jobs
    for step in range(1, 4):
        job.step(step)
    job.shard.keep_best(3)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        job.shard.save(CheckpointStore(str(tmp_path)), 3, "attempt", best=True, then=lambda saved: None)
        job.shard.wait_saved()
        private = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()

    slot, model_bytes = 1, 50_000 * 16 * 4
    held = (os.fstat(job.fd).st_blocks * 512 + private) / model_bytes - slot
    variables = optimizer_copies(json.dumps(_ADAM))
    assert variables == 3
    assert held == pytest.approx(held_models(variables) - WAITING_GRADIENTS, abs=0.2)


def test_where_steps_may_be_skipped_the_state_before_is_kept(jobs: list[Job]) -> None:
    jobs.append(Job(_SCALED, in_place=True))
    (job,) = jobs
    job.step(1)
    before = job.state(1)

    job.step(2)
    assert job.step(3, value=np.inf).finite, "it is skipped"

    assert job.shard.loss_scale(3) == 4.0
    for a, b in zip(job.state(3)[:-3], job.state(2)[:-3], strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(before[0], job.state(2)[0])


@pytest.mark.parametrize("in_place", [True, False])
def test_a_step_in_place_waits_for_the_checkpoint_that_copies_what_it_overwrites(
    in_place: bool, jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs += [Job(_ADAM, in_place=in_place), Job(_ADAM, in_place=False)]
    job, other = jobs
    job.step(1)
    expected, records, go_on = job.state(1), ModelShard._records, threading.Event()

    def slowly(*arguments: Any) -> Any:
        go_on.wait(60.0)
        return records(*arguments)

    monkeypatch.setattr(ModelShard, "_records", slowly)
    store = CheckpointStore(str(tmp_path))
    saved = job.save(store, 1)
    following = threading.Thread(target=job.step, args=(2,), daemon=True)
    following.start()
    following.join(0.3 if in_place else 60.0)
    assert following.is_alive() == in_place
    go_on.set()
    following.join(60.0)
    assert eventually(lambda: bool(saved)), "no answer"
    assert not saved[0].error
    monkeypatch.setattr(ModelShard, "_records", records)

    parts = tuple(CheckpointFile(*part) for part in saved[0].parts)
    store.commit(
        CheckpointManifest(
            fingerprint="",
            step=1,
            attempt="attempt",
            epoch=0,
            consumed=0,
            view=1,
            parts=parts,
            created_at=datetime.now(UTC),
        )
    )
    found = store.latest()
    assert found is not None
    with found.arrays() as arrays:
        other.shard.load(1, arrays)
    for a, b in zip(other.state(1), expected, strict=True):
        np.testing.assert_array_equal(a, b)


# ---- the sequencer -----------------------------------------------------------------------------------------


class Sequenced:
    """The sequencer of one worker and two aggregators, of which the second answers when it is told to."""

    def __init__(self, fd: int, *, in_place: bool) -> None:
        layout = Layout.of(model(_ADAM), 2)
        shard = ModelShard(fd, layout, 0, in_place=in_place)
        shard.begin()
        self.to_other: list[m.Message] = []
        self.reports: list[m.Message] = []
        self.orders: list[m.Go] = []
        self.loaded: set[int] = set()
        migration = Migration(BucketMap(0, 0, layout.holders), aggregators=2)
        self.sequencer = Sequencer(
            shard,
            Barrier(8, aggregators=2, in_place=in_place, migration=migration),
            to_worker=lambda _, message: self.orders.append(message) if isinstance(message, m.Go) else None,
            to_aggregator=lambda _, message: self.to_other.append(message),
            report=self.reports.append,
            post=lambda message: None,
            checkpoint=None,
            best_step=0,
            seed=1,
            quarantined=(),
            expect=lambda message: None,
            apply=shard.apply,
            loaded=self.loaded,
        )
        members = (Member("w0", 0),)
        self.sequencer.from_control(m.Announcement(Announce(1, members, 4, token=1, reason="the first")))
        self.before = list(self.orders)
        self.loaded.add(1)
        self.sequencer.from_aggregator(m.Initialised(1, 0, 0, 0))

    def contribute(self, *, loss: float = 1.0, sqnorm: float = 1.0) -> None:
        order = self.orders[-1]
        step = order.step + 1
        number = first_piece(order.view) + order.piece
        said = m.Contributed(1, step, number, 4, (0, 1), 0.1, 0.0, loss, 0.0, sqnorm=sqnorm)
        self.sequencer.from_worker("w0", said)

    def applied(self, step: int) -> None:
        (order,) = self.sent(m.ApplyPart)
        self.sequencer.from_aggregator(m.PartApplied(1, step, True, 0.0, 0.1, order.view, order.number))

    def sent(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.to_other if isinstance(message, kind)]


@pytest.mark.parametrize("in_place", [True, False])
def test_the_end_of_the_training_waits_until_a_step_in_place_is_applied_everywhere(
    in_place: bool, fd: int
) -> None:
    job = Sequenced(fd, in_place=in_place)
    job.contribute()
    assert job.sent(m.ApplyPart)

    job.sequencer.from_control(m.Finish(False, False))
    assert [order.step for order in job.sent(m.Finalise)] == ([] if in_place else [0])
    job.applied(1)
    assert [order.step for order in job.sent(m.Finalise)] == [1 if in_place else 0]
    job.sequencer.from_aggregator(m.Finalised(1, 1))

    assert [done.step for done in job.reports if isinstance(done, m.Done)] == [1 if in_place else 0]


def test_no_worker_reads_weights_before_all_aggregators_hold_theirs(fd: int) -> None:
    """It would take what an aggregator in its memory has not restored yet for those of the step."""
    job = Sequenced(fd, in_place=False)

    assert job.before == []
    assert [order.step for order in job.orders] == [0]


@pytest.mark.parametrize("bad", [{"loss": np.nan}, {"sqnorm": np.inf}, {"sqnorm": np.nan}])
def test_what_workers_tell_to_be_not_finite_is_never_applied(bad: dict[str, float], fd: int) -> None:
    job = Sequenced(fd, in_place=True)
    job.contribute(**bad)

    (failed,) = (message for message in job.reports if isinstance(message, m.Failed))
    assert failed.kind == "nonfinite"
    assert not job.sent(m.ApplyPart)
    job.sequencer.from_control(m.Finish(False, False))
    assert [order.step for order in job.sent(m.Finalise)] == [0]
