"""Gradients that workers hold: the group forms the mean if it can be that of the step, and else they are pushed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scavenger.elastic import round_events as r
from scavenger.elastic.exchange_ways import ExchangeWays
from scavenger.elastic.leases import Grant, LeasedSamples
from scavenger.elastic.quarantine import Cause
from scavenger.elastic.rounds import Rounds
from scavenger.elastic.sample_queue import SampleQueue
from scavenger.train.custom_loop import messages as lm
from scavenger.train.custom_loop.held_gradients import HeldGradients

HEADERS = (lm.TensorHeader("g", "<f8", (2,)),)
LIMIT_S = 10.0


class Workers:
    """Keeps what is sent to workers."""

    engine = SimpleNamespace(socket_dir=Path("/job"))

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []

    def send(self, worker: str, message: Any) -> None:
        self.sent.append((worker, message))

    def to_all(self, kind: type[Any]) -> list[str]:
        found = [worker for worker, message in self.sent if isinstance(message, kind)]
        self.sent.clear()
        return found


class World:
    """Three workers with a group, which each hold their gradient of a step of 7 samples."""

    def __init__(self, samples: int = 7) -> None:
        self.now, self.workers = 0.0, Workers()
        self.rounds = Rounds(SampleQueue(samples, seed=0), behind_max=5)
        for name in ("w0", "w1", "w2"):
            self.tell(r.WorkerLaunched(name), r.WorkerArrived(name, "h0"))
        self.tell(r.Resized(3, "start", global_batch_size=7), r.Donated("w0", 0))
        self.held = HeldGradients(
            self.workers,  # type: ignore[arg-type]
            ExchangeWays("process_group"),
            limit_s=LIMIT_S,
            clock=lambda: self.now,
        )
        self._told(0)
        assert self.held.next_step(self.rounds.members) == 0
        assert self.held.look(self.rounds) == []
        assert self.workers.to_all(lm.MakeGroup) == ["w0", "w1", "w2"]
        self._told(1)
        assert self.held.next_step(self.rounds.members) == 1

    def _told(self, number: int) -> None:
        for name in self.rounds.members:
            self.held.ways.pushed(name, "cpu", number, "")

    def tell(self, *events: r.Happening) -> list[r.Order]:
        return [order for event in events for order in self.rounds.handle(event)]

    def compute(self, *workers: str) -> list[str]:
        """Have workers compute their parts and hold the gradients; returns those that have any."""
        granted = [
            order
            for name in workers
            for order in self.tell(r.Asked(name, self.rounds.step, self.rounds.epoch))
            if isinstance(order, Grant)
        ]
        for grant in granted:
            part = LeasedSamples(grant.shard, grant.attempt, grant.start, grant.stop)
            pushed = r.Pushed(grant.worker, self.rounds.view, self.rounds.step + 1, part)
            self.held.hold(pushed, HEADERS)
        return [grant.worker for grant in granted]

    def answer(self, *workers: str, **told: Any) -> None:
        for name in workers:
            self.held.answered(name, lm.Reduced(self.request, **told))

    def reduces(self) -> bool:
        """Whether the workers are to form the mean of what they hold; else they are to push it."""
        assert self.held.look(self.rounds) == []
        asked = [message for _, message in self.workers.sent if isinstance(message, lm.Reduce)]
        if asked:
            self.request = asked[0].request
            assert sum(message.share for message in asked) == pytest.approx(1.0)
        given = self.workers.to_all(lm.GiveGradients)
        assert bool(given) != bool(asked)
        return bool(asked)


@pytest.fixture
def world() -> World:
    return World()


def test_the_rounds_learn_of_the_parts_once_every_member_has_the_mean(world: World) -> None:
    assert world.compute("w0", "w1") == ["w0", "w1"]
    assert world.held.look(world.rounds) == []
    assert not world.workers.sent, "one is computing"
    assert set(world.held.holding) == {"w0", "w1"}, "which is not their fault"
    world.compute("w2")
    assert world.reduces()
    world.answer("w0", "w2", sqnorm=2.0)
    assert world.held.look(world.rounds) == []
    world.answer("w1", sqnorm=2.0)

    pushed = world.held.look(world.rounds)

    assert [one.worker for one in pushed] == ["w0", "w1", "w2"]
    assert world.held.formed.keys() == {"w0", "w1", "w2"}
    assert any(isinstance(order, r.Average) for order in world.tell(*pushed))
    assert not world.workers.sent


def _dies(world: World) -> None:
    world.held.gone("w1")
    world.tell(r.WorkerGone("w1", Cause.CRASHED))


def _fails(world: World) -> None:
    world.answer("w0", failure="Connection closed by peer")


def _takes_too_long(world: World) -> None:
    world.now += LIMIT_S + 0.1


@pytest.mark.parametrize(("what", "lost"), [(_dies, True), (_fails, False), (_takes_too_long, False)])
def test_gradients_are_pushed_if_the_group_does_not_form_the_mean(
    world: World, what: Any, lost: bool
) -> None:
    world.compute("w0", "w1", "w2")
    assert world.reduces()
    what(world)

    assert world.held.look(world.rounds) == []

    left = ["w0", "w2"] if lost else ["w0", "w1", "w2"]
    assert world.workers.to_all(lm.GiveGradients) == left
    assert not world.held.holding, "they are waited for"
    world.answer("w0", "w2")  # it is too late
    assert world.held.look(world.rounds) == []
    assert not world.workers.sent, "they are asked once"
    for name in left:
        world.held.gone(name)  # it has pushed
    assert world.held.next_step(world.rounds.members) == 0
    world.held.look(world.rounds)
    assert world.workers.to_all(lm.MakeGroup) == (left if lost else [])


def test_the_leader_averages_where_one_follows_that_needs_the_mean_too(world: World) -> None:
    world.tell(r.WorkerLaunched("w3"), r.WorkerArrived("w3", "h0"))
    world.tell(r.Resized(4, "more", global_batch_size=7))
    world.compute("w0", "w1", "w2")
    assert world.reduces()
    world.answer("w0", "w1", "w2")
    orders = world.tell(*world.held.look(world.rounds), r.Averaged(1))
    assert r.Donate("w0", 1) in orders
    world.compute("w0", "w1", "w2")
    assert world.reduces()
    world.answer("w0", "w1", "w2")

    world.tell(r.Donated("w0", 1))  # from now on, the fourth one follows

    assert world.rounds.followers
    assert not world.reduces()


def test_the_leader_averages_where_a_worker_has_no_samples() -> None:
    few = World(samples=2)

    computing = few.compute("w0", "w1", "w2")

    assert 0 < len(computing) < 3
    assert not few.reduces()
