"""Rounds of a training loop of one's own: single rules by hand, all of them together under chaos."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from rounds_simulation import ViolationError, World

from scavenger.elastic import round_events as r
from scavenger.elastic.leases import Grant, HolderLost, Instruction, LeaseAttempt, LeasedSamples
from scavenger.elastic.ledger import ShardLedger
from scavenger.elastic.quarantine import Cause
from scavenger.elastic.rounds import Rounds

SEEDS = 200
_SIZES = (4, 4)
_SEEDS_FOR_MUTANTS = 5 * SEEDS
"""Each ends at the first violation; the rarest shows once in a few hundred seeds."""


# ---- under chaos -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", [False, True], ids=["shards", "samples"])
def test_every_sample_is_in_one_step_and_all_replicas_agree_whatever_happens_when(apart: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = World(seed, apart=apart)
        world.run()
        for what in ("kills", "joins", "leaves", "rollbacks", "late", "lost_for_good", "followed"):
            seen[what] += getattr(world, what)
        seen["steps"] += world.rounds.step

    # a simulation in which nothing happens would prove nothing
    assert seen["kills"] > 3 * SEEDS
    assert seen["joins"] > SEEDS
    assert seen["leaves"] > SEEDS // 3
    assert seen["followed"] > SEEDS
    assert seen["rollbacks"] > SEEDS // 4
    assert seen["late"] > SEEDS // 5
    assert seen["steps"] > (5 if apart else 10) * SEEDS
    assert seen["lost_for_good"] < SEEDS // 4


class KeepsLeasesOfTheDead(Rounds):
    """What a dead worker was reading is read by nobody."""

    def _forget(self, worker: str, cause: Cause) -> list[Instruction]:
        handle = self.ledger.handle
        self.ledger.handle = lambda event: [] if isinstance(event, HolderLost) else handle(event)  # type: ignore[method-assign]
        try:
            return super()._forget(worker, cause)
        finally:
            del self.ledger.handle  # type: ignore[method-assign]


class KeepsPartsOfTheDead(Rounds):
    """What a worker pushed before it died stays in the round, though its lease has ended."""

    def _gone(self, worker: str, cause: Cause) -> list[r.Order]:
        part = self._pushed.get(worker)
        orders = super()._gone(worker, cause)
        if part is not None and self._members:
            self._members = (*self._members, worker)
            self._pushed[worker] = part
        return orders


class TakesAnyState(Rounds):
    """A joiner gets the state of whichever step."""

    def _donated(self, event: r.Donated) -> list[r.Order]:
        return super()._donated(r.Donated(event.worker, self.step))


class TakesStatesOfTheDead(Rounds):
    """A joiner gets the state of a replica that nobody else follows."""

    def _donated(self, event: r.Donated) -> list[r.Order]:
        return super()._donated(r.Donated(min(self._current, default=event.worker), event.step))


class JoinsInMidRound(Rounds):
    """A view takes effect at once."""

    def _between(self) -> list[r.Order]:
        return [*self._install(), *self._seek_donor()]


class WaitsForTheIdle(Rounds):
    """Who has no data must push."""

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name in self._members if name not in self._pushed)


class ForgetsTheIdle(Rounds):
    """What becomes free is granted to those alone who ask later."""

    def _regrant(self) -> list[r.Order]:
        return []


class DonatesBeforeItPublishes(Rounds):
    """Asks for the state of a step from a worker that does not have it yet."""

    def _averaged(self, event: r.Averaged) -> list[r.Order]:
        orders = super()._averaged(event)
        return sorted(orders, key=lambda order: not isinstance(order, r.Donate))


class KeepsTheDonor(Rounds):
    """Waits for the state of a donor that is no more."""

    def _forget(self, worker: str, cause: Cause) -> list[Instruction]:
        donor = self._donor
        instructions = super()._forget(worker, cause)
        self._donor = donor
        return instructions


class LeavesJoinersWaiting(Rounds):
    """Does not tell those that wait for a state that nobody will donate one."""

    def _finished(self, worker: str) -> list[r.Order]:
        self.finishing = True
        return self._gone(worker, Cause.EVICTED)


class ForgetsWhoFollows(Rounds):
    """A worker that joins gets no steps but those of its view."""

    def _averaged(self, event: r.Averaged) -> list[r.Order]:
        orders = super()._averaged(event)
        return [replace(one, followers=()) if isinstance(one, r.Publish) else one for one in orders]


class ForgetsWhatHeirsAsked(Rounds):
    """Those that followed the dead wait for samples that they asked for before."""

    def _between(self) -> list[r.Order]:
        self._caught_up.clear()
        return super()._between()


class KnowsNoHeirs(Rounds):
    """Those that followed the dead are not believed, as they do not know of the newest view."""

    def _push(self, event: r.Pushed) -> list[r.Order]:
        self._heirs = set()
        return super()._push(event)


class CommitsTwice(Rounds):
    """Applies a step of which the ledger does not hear."""

    def _averaged(self, event: r.Averaged) -> list[r.Order]:
        sealed = self._sealed
        assert sealed is not None
        orders = super()._averaged(event)
        if event.step == 3:
            for part in sealed.parts:
                self.ledger._offsets[part.shard] = part.start
        return orders


@pytest.mark.parametrize(
    "mutant",
    [
        KeepsLeasesOfTheDead,
        KeepsPartsOfTheDead,
        TakesAnyState,
        TakesStatesOfTheDead,
        JoinsInMidRound,
        WaitsForTheIdle,
        ForgetsTheIdle,
        DonatesBeforeItPublishes,
        KeepsTheDonor,
        LeavesJoinersWaiting,
        ForgetsWhoFollows,
        ForgetsWhatHeirsAsked,
        KnowsNoHeirs,
        CommitsTwice,
    ],
)
def test_the_simulation_finds_every_broken_rule(mutant: type[Rounds]) -> None:
    def run_all() -> None:
        for seed in range(_SEEDS_FOR_MUTANTS):
            World(seed, rounds=mutant).run()

    with pytest.raises(ViolationError):
        run_all()


# ---- by hand -----------------------------------------------------------------------------------------------


def tell(rounds: Rounds, *events: r.Happening) -> list[r.Order]:
    """Feed events; returns what the last one led to."""
    orders: list[r.Order] = []
    for event in events:
        orders = rounds.handle(event)
    return orders


def begun(*workers: str) -> Rounds:
    """Workers of one view that all hold the first one's replica and have read nothing."""
    rounds = Rounds(ShardLedger(_SIZES, seed=0))
    for name in workers:
        tell(rounds, r.WorkerLaunched(name), r.WorkerArrived(name, "h0"))
    tell(rounds, r.Resized(len(workers), "start"), r.Donated(workers[0], 0))
    return rounds


def ask(rounds: Rounds, worker: str) -> Grant:
    [grant] = tell(rounds, r.Asked(worker, rounds.step, rounds.epoch))
    assert isinstance(grant, Grant)
    return grant


def push(rounds: Rounds, grant: Grant, samples: int) -> r.Pushed:
    part = LeasedSamples(grant.shard, grant.attempt, grant.start, grant.start + samples)
    return r.Pushed(grant.worker, rounds.view, rounds.step + 1, part)


def test_the_first_worker_keeps_its_replica_and_the_others_wait_for_it() -> None:
    rounds = Rounds(ShardLedger(_SIZES, seed=0))
    for name in ("w0", "w1", "w2"):
        assert tell(rounds, r.WorkerLaunched(name), r.WorkerArrived(name, "h0")) == []

    started = tell(rounds, r.Resized(3, "start"))
    loaded = tell(rounds, r.Donated("w0", 0))

    assert started == [r.StartWorker("w0", 0, 0, 1, load=False), r.Donate("w0", 0)]
    assert loaded == [r.StartWorker("w1", 0, 0, 1, load=True), r.StartWorker("w2", 0, 0, 1, load=True)]


def test_a_batch_is_divided_among_the_members_from_the_view_on_that_it_came_with() -> None:
    rounds = begun("w0", "w1")
    assert (rounds.share("w0"), rounds.settled) == (0, True)

    tell(rounds, r.Resized(2, "larger", global_batch_size=7, lr_scale=0.5))
    assert (rounds.share("w0"), rounds.settled) == (0, False)
    grants = [ask(rounds, "w0"), ask(rounds, "w1")]
    tell(rounds, push(rounds, grants[0], 2), push(rounds, grants[1], 2), r.Averaged(1))

    assert [rounds.share(name) for name in ("w0", "w1", "w2")] == [4, 3, 0]
    assert rounds.settled
    assert rounds.in_effect is not None
    assert (rounds.in_effect.global_batch_size, rounds.in_effect.lr_scale) == (7, 0.5)


def test_a_round_waits_for_every_member_and_its_mean_goes_to_all() -> None:
    rounds = begun("w0", "w1")
    grants = [ask(rounds, "w0"), ask(rounds, "w1")]

    first = tell(rounds, push(rounds, grants[0], 2))
    second = tell(rounds, push(rounds, grants[1], 4))
    published = tell(rounds, r.Averaged(1))

    assert first == []
    [average] = second
    assert isinstance(average, r.Average)
    assert [(name, part.stop - part.start) for name, part in average.contributions] == [("w0", 2), ("w1", 4)]
    assert published == [r.Publish(1, 0, over=False, view=1, members=2, workers=("w0", "w1"))]


def test_who_finds_nothing_to_read_holds_nobody_up_and_gets_the_mean() -> None:
    rounds = begun("w0", "w1", "w2")
    grants = [ask(rounds, "w0"), ask(rounds, "w1")]

    asked_in_vain = tell(rounds, r.Asked("w2", 0, 0))
    tell(rounds, push(rounds, grants[0], 4))
    [average] = tell(rounds, push(rounds, grants[1], 4))
    *_, publish = tell(rounds, r.Averaged(1))

    assert asked_in_vain == []
    assert isinstance(average, r.Average)
    assert isinstance(publish, r.Publish)
    assert (publish.over, publish.workers) == (True, ("w0", "w1", "w2"))


def test_what_a_dead_worker_has_not_committed_goes_to_who_asked_in_vain() -> None:
    rounds = begun("w0", "w1", "w2")
    grants = [ask(rounds, "w0"), ask(rounds, "w1")]
    tell(rounds, r.Asked("w2", 0, 0), push(rounds, grants[0], 1), push(rounds, grants[1], 1), r.Averaged(1))
    tell(rounds, r.Asked("w2", 1, 0))

    orders = tell(rounds, r.WorkerGone("w0", Cause.KILLED))

    [again] = [order for order in orders if isinstance(order, Grant)]
    assert (again.worker, again.shard, again.start, again.stop) == ("w2", grants[0].shard, 1, 4)


def test_the_others_complete_a_round_in_which_a_worker_died_after_it_pushed() -> None:
    rounds = begun("w0", "w1")
    grants = [ask(rounds, "w0"), ask(rounds, "w1")]
    tell(rounds, push(rounds, grants[0], 4))

    tell(rounds, r.WorkerGone("w0", Cause.KILLED))
    [average] = tell(rounds, push(rounds, grants[1], 4))

    assert isinstance(average, r.Average)
    assert [name for name, _ in average.contributions] == ["w1"]
    assert not rounds.ledger.over
    assert rounds.ledger.offset(grants[0].shard) == 0


def test_a_push_that_comes_late_or_twice_is_in_no_step() -> None:
    rounds = begun("w0", "w1")
    grants = [ask(rounds, "w0"), ask(rounds, "w1")]
    late, twice = push(rounds, grants[0], 2), push(rounds, grants[1], 2)
    tell(rounds, r.WorkerGone("w0", Cause.SILENT), twice, r.Averaged(1))

    assert tell(rounds, twice) == []
    assert tell(rounds, late) == [r.Leave("w0", "it is no member")]
    assert rounds.ledger.offset(grants[0].shard) == 0
    assert rounds.ledger.offset(grants[1].shard) == 2


@pytest.mark.parametrize("wrong", ["view", "step", "attempt", "start"])
def test_a_push_of_what_is_not_its_turn_ends_its_worker(wrong: str) -> None:
    rounds = begun("w0")
    right = push(rounds, ask(rounds, "w0"), 2)
    part = right.part
    changed = {
        "view": r.Pushed("w0", right.view + 1, right.step, part),
        "step": r.Pushed("w0", right.view, right.step + 1, part),
        "attempt": r.Pushed("w0", right.view, right.step, part._replace(attempt=LeaseAttempt(9, 9))),
        "start": r.Pushed("w0", right.view, right.step, part._replace(start=1)),
    }[wrong]

    [expel] = tell(rounds, changed)

    assert isinstance(expel, r.Evict)
    assert rounds.step == 0
    assert rounds.ledger.offset(part.shard) == 0


def test_joining_and_leaving_wait_for_the_boundary() -> None:
    rounds = begun("w0", "w1")
    grants = [ask(rounds, "w0"), ask(rounds, "w1")]

    waiting = tell(
        rounds, r.WorkerLaunched("w2"), r.WorkerArrived("w2", "h0"), r.Resized(2, "swap", without=("w1",))
    )
    tell(rounds, push(rounds, grants[0], 2), push(rounds, grants[1], 2))
    boundary = [
        order for order in tell(rounds, r.Averaged(1)) if isinstance(order, r.Publish | r.Leave | r.Donate)
    ]
    joined = tell(rounds, r.Donated("w0", 1))

    assert waiting == []
    view = rounds.view
    assert boundary == [
        r.Publish(1, 0, over=False, view=view, members=2, workers=("w0",)),
        r.Leave("w1", "swap"),
        r.Donate("w0", 1),
    ]
    assert joined == [r.StartWorker("w2", 1, 0, view, load=True)]
    assert rounds.members == ("w0", "w2")


def test_nobody_waits_for_a_worker_that_joins_until_it_has_applied_all_steps() -> None:
    rounds = begun("w0")
    rounds.behind_max = 10
    tell(rounds, r.WorkerLaunched("w1"), r.WorkerArrived("w1", "h0"), r.Resized(2, "more"))
    boundary = tell(rounds, push(rounds, ask(rounds, "w0"), 1), r.Averaged(1))
    followed = tell(rounds, r.Donated("w0", 1))

    assert r.Donate("w0", 1) in boundary
    assert followed == [r.StartWorker("w1", 1, 0, 1, load=True)]
    assert (rounds.members, rounds.settled) == (("w0",), False)
    behind = tell(rounds, push(rounds, ask(rounds, "w0"), 1), r.Averaged(2))
    assert r.Publish(2, 0, over=False, view=1, members=1, workers=("w0",), followers=("w1",)) in behind
    tell(rounds, r.Asked("w1", 1, 0), r.Asked("w1", 2, 0))
    joined = tell(rounds, push(rounds, ask(rounds, "w0"), 1), r.Averaged(3))

    view = rounds.view
    assert view > 1
    assert r.Publish(3, 0, over=False, view=view, members=2, workers=("w0", "w1")) in joined
    assert (rounds.members, rounds.settled) == (("w0", "w1"), True)


def test_the_others_wait_for_a_worker_that_falls_behind_too_far() -> None:
    rounds = begun("w0")
    rounds.behind_max = 1
    tell(rounds, r.WorkerLaunched("w1"), r.WorkerArrived("w1", "h0"), r.Resized(2, "more"))
    tell(rounds, push(rounds, ask(rounds, "w0"), 1), r.Averaged(1), r.Donated("w0", 1))
    tell(rounds, push(rounds, ask(rounds, "w0"), 1), r.Averaged(2))
    assert rounds.members == ("w0",)

    tell(rounds, push(rounds, ask(rounds, "w0"), 1), r.Averaged(3))

    assert rounds.members == rounds.missing == ("w0", "w1")


def test_a_worker_that_follows_goes_on_where_all_that_it_followed_are_gone() -> None:
    rounds = begun("w0")
    rounds.behind_max = 10
    tell(rounds, r.WorkerLaunched("w1"), r.WorkerArrived("w1", "h0"), r.Resized(2, "more"))
    tell(rounds, push(rounds, ask(rounds, "w0"), 1), r.Averaged(1), r.Donated("w0", 1), r.Asked("w1", 1, 0))

    orders = tell(rounds, r.WorkerGone("w0", Cause.KILLED))
    [grant] = [order for order in orders if isinstance(order, Grant)]

    assert (grant.worker, rounds.members) == ("w1", ("w1",))


def test_another_member_donates_where_the_donor_dies() -> None:
    rounds = begun("w0", "w1")
    tell(rounds, r.WorkerLaunched("w2"), r.WorkerArrived("w2", "h0"), r.Resized(3, "more"))
    grants = [ask(rounds, "w0"), ask(rounds, "w1")]
    tell(rounds, push(rounds, grants[0], 2), push(rounds, grants[1], 2), r.Averaged(1))

    assert r.Donate("w1", 1) in tell(rounds, r.WorkerGone("w0", Cause.KILLED))
    assert tell(rounds, r.Donated("w0", 1)) == []


def test_no_other_replica_takes_the_place_of_one_that_a_step_was_made_from() -> None:
    rounds = begun("w0")
    tell(rounds, r.WorkerLaunched("w1"), r.WorkerArrived("w1", "h0"))
    tell(rounds, push(rounds, ask(rounds, "w0"), 2))

    assert tell(rounds, r.WorkerGone("w0", Cause.KILLED)) == []
    assert tell(rounds, r.Averaged(1))[-1] == r.Stranded(1)


def test_nobody_joins_once_a_member_has_returned() -> None:
    rounds = begun("w0", "w1")
    tell(rounds, r.WorkerLaunched("w2"), r.WorkerLaunched("w3"), r.WorkerArrived("w3", "h0"))

    orders = tell(rounds, r.WorkerFinished("w0"))

    assert {order.worker for order in orders if isinstance(order, r.Leave)} == {"w2", "w3"}
    assert not rounds.done
    tell(rounds, r.WorkerFinished("w1"))
    assert rounds.done


def test_who_asks_for_an_epoch_that_ended_without_a_step_is_told() -> None:
    rounds = begun("w0", "w1")
    for shard, size in enumerate(_SIZES):
        rounds.ledger._move(shard, size)  # as where its last samples were quarantined

    assert tell(rounds, r.Asked("w0", 0, 0)) == [r.Over("w0", 0)]
    assert isinstance(tell(rounds, r.Asked("w0", 0, 1))[0], Grant)
    assert tell(rounds, r.Asked("w1", 0, 0)) == [r.Over("w1", 0)]


def test_asking_ahead_of_the_epoch_ends_a_worker() -> None:
    [order] = tell(begun("w0"), r.Asked("w0", 0, 1))

    assert isinstance(order, r.Evict)


def test_only_what_was_to_be_averaged_can_have_been() -> None:
    rounds = begun("w0")

    with pytest.raises(ValueError, match="was not to be averaged"):
        tell(rounds, r.Averaged(1))


def test_a_kept_state_is_what_the_first_members_begin_with() -> None:
    before = begun("w0")
    tell(before, push(before, ask(before, "w0"), 2), r.Averaged(1))
    ledger = ShardLedger.restore(before.ledger.snapshot(), incarnation=1)
    rounds = Rounds(ledger, held=True, view=before.view)
    tell(
        rounds,
        r.WorkerLaunched("w1"),
        r.WorkerLaunched("w2"),
        r.WorkerArrived("w1", "h0"),
        r.WorkerArrived("w2", "h0"),
    )

    started = tell(rounds, r.Resized(2, "again"))

    assert started == [r.StartWorker(name, 1, 0, before.view + 1, load=True) for name in ("w1", "w2")]
