"""The best weights are those of one step on all aggregators, whoever dies while they are being kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_in_place import _ADAM, Job, Sequenced

from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import create_block


class Restarted(Job):
    """An aggregator whose process is replaced by another that uses the same block."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__(_ADAM, in_place=in_place)
        self.in_place = in_place

    def replace(self) -> None:
        self.shard = ModelShard(self.fd, self.layout, 0, in_place=self.in_place)

    def weights(self, step: int) -> list[Any]:
        return [array.copy() for array in self.shard.held.state(step).weights]

    def train(self, step: int, best_step: int) -> None:
        table, bias = self.shard.block.tensors(self.layout.slot_at(0))
        table[...], bias[...] = 0.25 * step, -0.5 * step
        order = m.ApplyPart(step, 1, 1.0, ((step, 4, 0, ()),), step, best_step=best_step)
        assert self.shard.apply(order).finite


@pytest.fixture(params=[False, True], ids=["two states", "in place"])
def job(request: pytest.FixtureRequest) -> Iterator[Restarted]:
    made = Restarted(in_place=request.param)
    yield made
    os.close(made.fd)


def same(some: list[Any], others: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


def test_an_aggregator_that_was_not_told_keeps_the_best_weights_before_they_are_overwritten(
    job: Restarted,
) -> None:
    job.train(1, 0)
    job.shard.keep_best(1)
    job.train(2, 1)
    best = job.weights(2)
    job.replace()  # it dies with the message that step 2 is better, as may the sequencer that sent it
    job.train(3, 2)
    job.replace()
    job.train(4, 2)
    job.train(5, 2)

    job.shard.finalise(5, best=True)
    assert same(job.weights(5), best)


def test_what_was_kept_before_stays_where_no_later_step_is_better(job: Restarted) -> None:
    job.train(1, 0)
    best = job.weights(1)
    job.shard.keep_best(1)
    for step in (2, 3, 4):
        job.train(step, 1)
        job.replace()

    job.shard.see_best(1, 4)
    job.shard.finalise(4, best=True)
    assert same(job.weights(4), best)


def test_at_the_end_and_in_a_checkpoint_the_last_step_may_be_the_best(job: Restarted, tmp_path: Path) -> None:
    job.train(1, 0)
    job.shard.keep_best(1)
    job.train(2, 1)
    best = job.weights(2)
    job.replace()
    job.shard.see_best(2, 2)
    job.shard.save(CheckpointStore(str(tmp_path)), 2, "attempt", best=True, then=lambda saved: None)
    job.shard.wait_saved()
    for _ in range(2):  # the order is repeated until it is answered
        job.shard.see_best(2, 2)
        job.shard.finalise(2, best=True)
    assert same(job.weights(2), best)
    kept = [array for number, array in enumerate(job.shard.block.tensors(job.layout.best_at))]
    assert same(kept, best)


def test_every_order_after_a_verdict_says_which_step_was_the_best() -> None:
    fd = create_block()
    try:
        job = Sequenced(fd, in_place=False)
        for step in (1, 2):
            job.to_other.clear()
            job.contribute()
            assert [order.best_step for order in job.sent(m.ApplyPart)] == [0]
            job.applied(step)
        job.sequencer.from_worker("w0", m.Summary(1, 2, {"loss": 0.5}))
        job.sequencer.from_control(m.VerdictGiven(0, False, True))
        assert [kept.step for kept in job.sent(m.KeepBest)] == [2]
        job.to_other.clear()

        job.contribute()
        assert [order.best_step for order in job.sent(m.ApplyPart)] == [2]
        job.applied(3)
        job.sequencer.from_control(m.Finish(True, False))
        assert [(order.best, order.best_step) for order in job.sent(m.Finalise)] == [(True, 2)]
    finally:
        os.close(fd)
