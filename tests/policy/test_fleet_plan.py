"""Which VMs a job wants, by its processes and what is known of its VMs; and what a shortage means for it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from made_intents import made_intent
from nested import built

from scavenger.domain.configuration import Offer
from scavenger.domain.intent import FleetSpec, Intent, IntentState, PlacementOption, VmSlot
from scavenger.domain.vm import VmPackage
from scavenger.policy.provisioning.fleet_plan import (
    SILENT_S,
    AgentSeen,
    FleetInputs,
    FleetPlan,
    FleetSeen,
    Refusal,
    Shortage,
    first_plan,
    given_up,
    plan_fleet,
    read_shortage,
    slots_of,
)
from scavenger.policy.provisioning.slots import AGGREGATOR_SLOT, AGGREGATORS, IDLE_S, Slot, aggregator_slot

HERE = PlacementOption("small", "a", False, 0.1)
BIG = PlacementOption("big", "a", True, 0.4)
WANTED = built(
    FleetSpec,
    job_id="job",
    provider="fake",
    region="r",
    slots=(),
    options=(),
    vms_max=6,
    budget_usd=math.inf,
    run_max_s=1e6,
)


def offer(vm: str, workers: int) -> Offer:
    return Offer("fake", "r", vm, 0.1, "test", cpus=2, memory_bytes=2**32, workers_per_vm=workers)


INPUTS = FleetInputs(
    spec=WANTED,
    package=VmPackage(requirement="p"),
    options={AGGREGATORS: (HERE,), "small": (HERE,), "big": (BIG,)},
    offers=(offer("small", 1), offer("big", 2)),
    threads={"small": 2, "big": 2},
)
BUSY = AgentSeen(joined=True, processes=1)


def intent(slot: int, state: IntentState = "UP", *, generation: int = 0, attempt: int = 1) -> Intent:
    name = f"{slot}.{generation}"
    return made_intent(
        {
            "token": name,
            "slot": slot,
            "generation": generation,
            "run_max_s": 1e6,
            "user_data": "",
            "image": "",
            "disk_gib": 20,
            "labels": (),
            "life_s": 900.0,
        },
        provider="fake",
        price_usd_per_hour=0.1,
        reserved_usd=0.0,
        attempt=attempt,
        state=state,
    )


def seen(*vms: tuple[Intent, AgentSeen | None], workers: dict[str, int], **more: Any) -> FleetSeen:
    agents = {one.id: agent for one, agent in vms if agent is not None}
    given: dict[str, Any] = {"aggregators": 1, **more}
    return FleetSeen(tuple(one for one, _ in vms), agents, workers, **given)


def planned(what: FleetSeen, before: FleetPlan | None = None) -> FleetPlan:
    return plan_fleet(INPUTS, before or FleetPlan(), what)


TWO = planned(seen(workers={"small": 2}))
"""A plan for two workers and the aggregators."""


class TestPlan:
    def test_every_worker_has_a_place_and_all_aggregators_share_a_vm(self) -> None:
        plan = planned(seen(workers={"small": 2, "big": 3}, aggregators=5))

        assert [slot.vm for slot in plan.slots] == ["small", "small", "big", "big"]
        assert slots_of(INPUTS, plan) == (
            VmSlot(AGGREGATOR_SLOT, 0, (HERE,)),
            VmSlot(1, options=(HERE,)),
            VmSlot(2, options=(HERE,)),
            VmSlot(3, options=(BIG,)),
            VmSlot(4, options=(BIG,)),
        )

    def test_the_first_vm_alone_is_that_of_the_aggregators(self) -> None:
        (first,) = slots_of(INPUTS, TWO, one_first=True)

        assert first.number == AGGREGATOR_SLOT

    def test_nothing_is_wanted_for_nothing(self) -> None:
        assert slots_of(INPUTS, planned(seen(workers={}, aggregators=0))) == ()

    def test_what_is_wanted_is_wanted_still_while_nothing_changes(self) -> None:
        assert planned(seen(workers={"small": 2}), TWO) == TWO

    def test_never_more_vms_than_the_job_may_have(self) -> None:
        plan = planned(seen(workers={"small": 20}))
        assert len(slots_of(INPUTS, plan)) == WANTED.vms_max

    @pytest.mark.parametrize("state", ["DELETING", "GONE"])
    def test_a_worker_on_a_vm_that_ends_needs_no_other(self, state: IntentState) -> None:
        what = seen((intent(1, state), BUSY), (intent(2), BUSY), workers={"small": 2})
        assert [slot.number for slot in planned(what, replace(TWO, slots=(Slot(2, "small"),))).slots] == [2]

    def test_a_vm_with_nothing_to_do_goes_after_a_while(self) -> None:
        def idle(seconds: float) -> FleetPlan:
            resting = AgentSeen(joined=True, idle_s=seconds)
            return planned(seen((intent(1), BUSY), (intent(2), resting), workers={"small": 1}), TWO)

        assert [slot.number for slot in idle(IDLE_S / 2).slots] == [1, 2]
        assert [slot.number for slot in idle(IDLE_S).slots] == [1]

    def test_a_vm_that_was_told_of_its_end_is_followed_by_another(self) -> None:
        ending = replace(BUSY, is_ending=True, ends_in_s=60.0)
        # the worker there, the one that stays, and the one that takes the place of the first
        what = seen((intent(1), ending), (intent(2), BUSY), workers={"small": 3})
        assert [slot.number for slot in planned(what, TWO).slots] == [1, 2, 3]

    def test_a_vm_at_risk_gets_no_more_work(self) -> None:
        at_risk = AgentSeen(joined=True, is_ending=True)
        what = seen((intent(1), at_risk), (intent(2), BUSY), workers={"small": 2})
        assert [slot.number for slot in planned(what, TWO).slots] == [2, 3]

    @pytest.mark.parametrize(("in_doubt", "numbers"), [(False, [2, 3]), (True, [1, 2])])
    def test_a_silent_vm_is_replaced_unless_the_network_is_to_blame(
        self, in_doubt: bool, numbers: list[int]
    ) -> None:
        silent = AgentSeen(joined=True, silent_s=SILENT_S + 1.0)
        what = seen((intent(1), silent), (intent(2), BUSY), workers={"small": 2}, in_doubt=in_doubt)
        assert [slot.number for slot in planned(what, TWO).slots] == numbers

    @pytest.mark.parametrize(("in_doubt", "generation"), [(False, 1), (True, 0)])
    def test_so_is_the_aggregators_vm_by_its_next_generation(self, in_doubt: bool, generation: int) -> None:
        silent = AgentSeen(joined=True, silent_s=SILENT_S + 1.0)
        what = seen((intent(AGGREGATOR_SLOT), silent), workers={"small": 2}, in_doubt=in_doubt)
        (aggregators, *_) = slots_of(INPUTS, planned(what, TWO))
        assert aggregators.generation == generation

    def test_a_vm_is_given_up_that_ends_or_that_nobody_wants(self) -> None:
        plan = replace(TWO, generations={AGGREGATOR_SLOT: 1})
        stay = (intent(AGGREGATOR_SLOT, generation=1), intent(1), intent(2, "PLAN"))
        go = (intent(AGGREGATOR_SLOT), intent(2, "DELETING", generation=1), intent(3))
        assert given_up(INPUTS, plan, (*stay, *go)) == {one.id for one in go}

    def test_an_attempt_begins_behind_all_slots_and_generations_of_the_ones_before(self) -> None:
        past = (intent(AGGREGATOR_SLOT, "GONE", generation=2), intent(7, "UP"))
        plan = first_plan((*past, intent(9, attempt=2)), 2)
        assert (plan.first, plan.generations) == (8, {AGGREGATOR_SLOT: 3})


SPREAD = replace(INPUTS, aggregators_on=(2, 1))
"""Three aggregators on two VMs."""
SECOND = aggregator_slot(1)


class TestSeveralAggregatorVms:
    """A job with two of them and two workers."""

    plan = plan_fleet(SPREAD, FleetPlan(), seen(workers={"small": 2}, aggregators=3))

    def test_each_has_a_slot_of_its_own_before_those_of_the_workers(self) -> None:
        assert slots_of(SPREAD, self.plan) == (
            VmSlot(AGGREGATOR_SLOT, 0, (HERE,)),
            VmSlot(SECOND, 0, (HERE,)),
            VmSlot(1, options=(HERE,)),
            VmSlot(2, options=(HERE,)),
        )
        assert {slot: self.plan.types[slot] for slot in (AGGREGATOR_SLOT, SECOND)} == {
            AGGREGATOR_SLOT: AGGREGATORS,
            SECOND: AGGREGATORS,
        }
        assert len(slots_of(SPREAD, self.plan, one_first=True)) == 1

    @pytest.mark.parametrize("silent", [0, 1])
    def test_one_that_falls_silent_is_replaced_and_the_other_stays(self, silent: int) -> None:
        quiet = AgentSeen(joined=True, processes=1, silent_s=SILENT_S + 1.0)
        vms = [(intent(aggregator_slot(i)), quiet if i == silent else BUSY) for i in range(2)]
        after = plan_fleet(SPREAD, self.plan, seen(*vms, workers={"small": 2}, aggregators=3))

        generations = [slot.generation for slot in slots_of(SPREAD, after)[:2]]
        assert generations == [int(index == silent) for index in range(2)]
        again = plan_fleet(SPREAD, after, seen(workers={"small": 2}, aggregators=3))
        assert slots_of(SPREAD, again) == slots_of(SPREAD, after)

    def test_they_leave_room_for_the_workers_within_the_limit_of_vms(self) -> None:
        many = plan_fleet(SPREAD, FleetPlan(), seen(workers={"small": 9}, aggregators=3))
        assert len(slots_of(SPREAD, many)) == WANTED.vms_max

    def test_each_vm_has_its_own_share_of_the_aggregators(self) -> None:
        assert [SPREAD.processes_in(slot, AGGREGATORS) for slot in (AGGREGATOR_SLOT, SECOND)] == [2, 1]
        assert SPREAD.processes_in(aggregator_slot(2), AGGREGATORS) == 0  # of an attempt that had three

    def test_later_attempts_begin_behind_every_one(self) -> None:
        past = (intent(AGGREGATOR_SLOT, "GONE", generation=2), intent(SECOND, "GONE"), intent(7, "GONE"))
        plan = first_plan(past, 2)
        assert (plan.first, plan.generations) == (8, {AGGREGATOR_SLOT: 3, SECOND: 1})

    def test_a_job_that_cannot_have_all_of_them_ends(self) -> None:
        vms = ((intent(AGGREGATOR_SLOT), BUSY), (intent(1), None))
        what = seen(*vms, workers={"small": 2}, aggregators=3, waiting={"small": 1})
        said = {"no_placement": "so it is"}
        assert read_shortage(SPREAD, self.plan, what, said) == Shortage("no_placement", "so it is")
        both = seen(*vms, (intent(SECOND), None), workers={"small": 1}, aggregators=3, waiting={"small": 1})
        assert read_shortage(SPREAD, self.plan, both, said) is None


class TestShortage:
    """A job with a plan for two workers, of which one runs on slot 1."""

    def read(
        self, kind: str, *more: tuple[Intent, AgentSeen | None], waiting: int = 1, works: bool = True
    ) -> Shortage | Refusal | None:
        vms: tuple[tuple[Intent, AgentSeen | None], ...] = ((intent(AGGREGATOR_SLOT), BUSY),)
        if works:
            vms += ((intent(1), BUSY),)
        what = seen(*vms, *more, workers={"small": waiting + works}, waiting={"small": waiting})
        return read_shortage(INPUTS, TWO, what, {kind: "so it is"} if kind else {})

    def test_a_budget_that_is_reached_ends_the_job_whatever_runs(self) -> None:
        assert self.read("budget", waiting=0) == Shortage("budget", "so it is")

    @pytest.mark.parametrize("kind", ["", "sold_out", "quota"])
    def test_what_may_pass_is_waited_for(self, kind: str) -> None:
        assert self.read(kind, works=False) is None

    @pytest.mark.parametrize("kind", ["unaffordable", "credentials", "no_quota", "no_placement", "loop"])
    def test_with_no_worker_and_no_vm_to_come_the_job_ends(self, kind: str) -> None:
        assert self.read(kind, works=False) == Shortage(kind, "so it is")

    def test_vms_that_fail_alike_end_a_job_without_workers_whatever_is_on_its_way(self) -> None:
        assert self.read("boot", (intent(2, "PLAN"), None), works=False) == Shortage("boot", "so it is")
        assert self.read("boot", waiting=2) == Refusal({"small": 2}, "so it is")

    def test_what_is_sold_out_for_too_long_ends_a_job_that_has_nothing_and_no_other(self) -> None:
        def read(sold_out_s: float, *workers: tuple[Intent, AgentSeen | None]) -> Shortage | Refusal | None:
            vms = ((intent(AGGREGATOR_SLOT), BUSY), *workers)
            count = len(workers)
            what = seen(*vms, workers={"small": 1 + count}, waiting={"small": 1}, sold_out_s=sold_out_s)
            return read_shortage(INPUTS, TWO, what, {"sold_out": "so it is"})

        assert read(INPUTS.wait_max_s - 1.0) is None
        assert read(INPUTS.wait_max_s) == Shortage("sold_out", "so it is")
        assert read(INPUTS.wait_max_s, (intent(1), BUSY)) == Refusal({"small": 1}, "so it is")

    def test_while_a_worker_runs_those_in_excess_are_refused(self) -> None:
        assert self.read("loop", waiting=2) == Refusal({"small": 2}, "so it is")

    def test_a_vm_on_its_way_is_waited_for(self) -> None:
        assert self.read("loop", (intent(2, "PLAN"), None), waiting=2) == Refusal({"small": 1}, "so it is")
        assert self.read("loop", (intent(2, "PLAN"), None), works=False) is None

    def test_who_does_not_wait_is_not_refused(self) -> None:
        assert self.read("no_placement", waiting=0) is None

    def test_workers_have_nothing_to_do_without_aggregators(self) -> None:
        what = seen((intent(1), BUSY), workers={"small": 2}, waiting={"small": 1})
        assert read_shortage(INPUTS, TWO, what, {"no_placement": "so it is"}) == Shortage(
            "no_placement", "so it is"
        )
