"""Which VMs a job asks for, keeps and gives back."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scavenger.policy.provisioning.slots import (
    AGGREGATOR_SLOT,
    FURTHER_AGGREGATORS,
    IDLE_S,
    LAST_S,
    Slot,
    SlotSeen,
    aggregator_index,
    aggregator_slot,
    evenly,
    is_for_aggregators,
    on_further_hosts,
    plan_slots,
)

PLACES = {"huge": 64, "small": 1, "large": 2}
TYPES = st.sampled_from(sorted(PLACES))


@given(
    st.dictionaries(st.text("w0", min_size=1), st.sampled_from(["", "a", "b", "c", "d"])), st.integers(0, 5)
)
def test_workers_leave_all_hosts_but_those_with_most_of_them(hosts: dict[str, str], count: int) -> None:
    leaving = on_further_hosts(hosts, count)
    left = Counter(hosts[name] for name in leaving)
    stays = Counter(host for name, host in hosts.items() if host and name not in leaving)

    assert "" not in left
    assert not left.keys() & stays.keys()
    assert len(stays) == min(count, len(left.keys() | stays.keys()))
    assert not left or not stays or max(left.values()) <= min(stays.values())


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[SlotSeen], dict[str, int], int]:
    seen = []
    for number in range(draw(st.integers(0, 8))):
        vm = draw(TYPES)
        joined = draw(st.booleans())
        busy = draw(st.integers(0, PLACES[vm])) if joined else 0
        ends_in_s = draw(st.none() | st.floats(-5.0, 120.0)) if joined else None
        idle_s = 0.0 if busy else draw(st.floats(0.0, 30.0))
        avoided = joined and draw(st.booleans())
        seen.append(SlotSeen(Slot(number, vm, PLACES[vm]), joined, busy, idle_s, ends_in_s, avoided))
    busy_by_type = {vm: sum(one.busy for one in seen if one.slot.vm == vm) for vm in PLACES}
    needs = {vm: busy_by_type[vm] + draw(st.integers(0, 5)) for vm in PLACES}
    return seen, needs, len(seen)


@given(st.integers(0, 1000))
def test_the_slot_of_an_aggregator_vm_tells_which_it_is(index: int) -> None:
    assert aggregator_index(aggregator_slot(index)) == index
    assert aggregator_slot(0) == AGGREGATOR_SLOT == 0


@given(st.integers(1, FURTHER_AGGREGATORS))
def test_no_other_slot_is_for_aggregators(slot: int) -> None:
    assert not is_for_aggregators(slot)


@given(st.integers(1, 16).flatmap(lambda vms: st.tuples(st.integers(vms, 64), st.just(vms))))
def test_processes_are_spread_evenly_and_none_is_forgotten(case: tuple[int, int]) -> None:
    processes, vms = case
    found = evenly(processes, vms)

    assert (len(found), sum(found)) == (vms, processes)
    assert max(found) - min(found) <= 1 <= min(found)


@given(situations())
def test_a_vm_that_works_and_stays_is_never_given_up(
    case: tuple[list[SlotSeen], dict[str, int], int],
) -> None:
    seen, needs, first = case
    wanted = plan_slots(seen, needs, PLACES, first)

    assert all(one.slot in wanted for one in seen if one.busy and one.stays)


@given(situations())
def test_there_is_a_place_for_every_process(case: tuple[list[SlotSeen], dict[str, int], int]) -> None:
    seen, needs, first = case
    wanted = plan_slots(seen, needs, PLACES, first)
    ending = {one.slot.number for one in seen if not one.stays}

    for vm, count in needs.items():
        there = sum(one.busy for one in seen if one.slot.vm == vm and not one.stays)
        room = sum(slot.capacity for slot in wanted if slot.vm == vm and slot.number not in ending)
        assert room >= count - there


@given(situations())
def test_only_what_is_needed_is_asked_for(case: tuple[list[SlotSeen], dict[str, int], int]) -> None:
    seen, needs, first = case
    wanted = plan_slots(seen, needs, PLACES, first)
    known = {one.slot for one in seen}

    for vm in PLACES:
        new = [slot for slot in wanted if slot.vm == vm and slot not in known]
        free = [one for one in seen if one.slot.vm == vm and one.stays and not one.busy]
        assert not new or all(one.slot in wanted for one in free)


@given(situations())
def test_a_slots_number_is_never_given_twice(case: tuple[list[SlotSeen], dict[str, int], int]) -> None:
    seen, needs, first = case
    wanted = plan_slots(seen, needs, PLACES, first)
    known = {one.slot for one in seen}

    assert len({slot.number for slot in wanted}) == len(wanted)
    assert all(slot.number >= first for slot in wanted if slot not in known)


@given(situations())
def test_what_was_wished_for_is_wished_for_again_while_nothing_changes(
    case: tuple[list[SlotSeen], dict[str, int], int],
) -> None:
    seen, needs, first = case
    seen = [one for one in seen if one.stays or not one.busy or (one.ends_in_s or 0.0) > LAST_S]
    wanted = plan_slots(seen, needs, PLACES, first)
    by_slot = {one.slot: one for one in seen}
    again = [by_slot.get(slot, SlotSeen(slot)) for slot in wanted]

    assert plan_slots(again, needs, PLACES, first + len(wanted)) == wanted


def test_of_idle_vms_those_that_have_not_joined_are_given_up_at_once() -> None:
    seen = [SlotSeen(Slot(0, "small")), SlotSeen(Slot(1, "small"), True, 0, 1.0)]

    assert plan_slots(seen, {"small": 0}, PLACES, 2) == (Slot(1, "small"),)
    assert plan_slots([SlotSeen(Slot(1, "small"), True, 0, IDLE_S)], {}, PLACES, 2) == ()


def test_a_vm_that_ends_is_followed_by_another_while_it_still_works() -> None:
    ending = SlotSeen(Slot(0, "small"), True, 1, 0.0, 60.0)

    # the worker on it, and the one that takes its place
    assert plan_slots([ending], {"small": 2}, PLACES, 1) == (Slot(0, "small"), Slot(1, "small"))


def test_a_vm_that_ends_is_let_go_once_nothing_runs_there_or_its_time_has_come() -> None:
    idle = SlotSeen(Slot(0, "small"), True, 0, 0.0, 60.0)
    late = SlotSeen(Slot(0, "small"), True, 1, 0.0, 1.0)

    assert plan_slots([idle], {}, PLACES, 1) == ()
    assert plan_slots([late], {"small": 1}, PLACES, 1) == ()


@given(situations())
def test_a_vm_that_is_avoided_stays_as_long_as_it_works_and_no_longer(
    case: tuple[list[SlotSeen], dict[str, int], int],
) -> None:
    seen, needs, first = case
    wanted = plan_slots(seen, needs, PLACES, first)

    for one in seen:
        if one.avoided and one.ends_in_s is None:
            assert (one.slot in wanted) == (one.busy > 0)
