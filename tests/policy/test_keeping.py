"""Which VMs a study keeps, which trial takes which, and which end: laws over any VMs and any trial."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.policy.provisioning.keeping import (
    ARRIVE_S,
    SILENT_S,
    KeptVm,
    OpenSlot,
    TrialWants,
    idle_limit_usd,
    to_end,
    to_take,
    unsuited,
)
from scavenger.policy.provisioning.slots import AGGREGATOR_SLOT, is_for_aggregators

places = st.tuples(st.sampled_from(["small", "large"]), st.sampled_from(["a", "b"]), st.booleans())
vms = st.builds(
    KeptVm,
    id=st.uuids().map(str),
    place=places,
    made_of=st.sampled_from(["image-1", "image-2"]),
    left_s=st.floats(0.0, 1e6),
    waited_s=st.floats(0.0, 600.0),
    joined=st.booleans(),
    silent_s=st.floats(0.0, 90.0),
    is_ending=st.booleans(),
    left_by=st.sampled_from(["trial-1", "trial-2"]),
)
kept = st.lists(vms, max_size=8, unique_by=lambda vm: vm.id)
slots = st.lists(
    st.builds(
        OpenSlot,
        number=st.integers(AGGREGATOR_SLOT, AGGREGATOR_SLOT + 6),
        places=st.lists(places, min_size=1, max_size=4, unique=True).map(tuple),
    ),
    max_size=6,
    unique_by=lambda slot: slot.number,
)
trials = st.builds(
    TrialWants,
    job_id=st.sampled_from(["trial-1", "trial-3"]),
    made_of=st.sampled_from(["image-1", "image-2"]),
    lasts_s=st.floats(600.0, 1e6),
    places=st.frozensets(places, min_size=1),
    zone=st.sampled_from(["", "a", "b"]),
)


@given(kept, trials, slots)
def test_a_slot_gets_only_a_vm_that_it_could_have_rented_and_each_vm_fills_one(
    kept: list[KeptVm], trial: TrialWants, slots: list[OpenSlot]
) -> None:
    taken = to_take(kept, trial, slots)

    by_id, by_number = {vm.id: vm for vm in kept}, {slot.number: slot for slot in slots}
    assert len(set(taken.values())) == len(taken)
    for number, id in taken.items():
        vm = by_id[id]
        assert vm.place in by_number[number].places
        assert vm.place[2] == by_number[number].places[0][2]
        assert vm.is_sound or vm.is_coming
        assert vm.made_of == trial.made_of
        assert vm.place in trial.places
        assert vm.left_by != trial.job_id
        assert vm.left_s >= min(trial.lasts_s - 600.0, 86_400.0)
    zones = {by_id[id].place[1] for id in taken.values()}
    if trial.zone or any(map(is_for_aggregators, taken)):
        assert len(zones | ({trial.zone} - {""})) <= 1


@given(kept, trials, slots)
def test_no_vacant_slot_is_left_that_a_free_vm_of_the_zone_would_fill(
    kept: list[KeptVm], trial: TrialWants, slots: list[OpenSlot]
) -> None:
    trial = replace(trial, zone="a")
    taken = to_take(kept, trial, slots)
    free = [vm for vm in kept if vm.is_sound and vm.left_by != trial.job_id and trial.is_met_by(vm)]
    left = [vm for vm in free if vm.id not in taken.values() and vm.place[1] == "a"]
    vacant = [slot for slot in slots if slot.number not in taken]

    assert not [(slot, vm) for slot in vacant for vm in left if slot.suits(vm.place)]


@given(kept, st.floats(1.0, 600.0), st.floats(0.0, 1e4))
def test_every_vm_ends_within_its_time_and_waiting_longer_ends_no_fewer(
    kept: list[KeptVm], idle_s: float, later_s: float
) -> None:
    ended = to_end(kept, idle_s)
    later = to_end([replace(vm, waited_s=vm.waited_s + later_s) for vm in kept], idle_s)

    assert ended.keys() <= later.keys()
    assert {vm.id for vm in kept if vm.waited_s >= idle_s} <= ended.keys()
    staying = [vm for vm in kept if vm.id not in ended]
    assert all(vm.is_sound or vm.silent_s >= SILENT_S or vm.waited_s < ARRIVE_S for vm in staying)


waiting = st.builds(
    KeptVm,
    id=st.uuids().map(str),
    place=places,
    made_of=st.just("image-1"),
    left_s=st.just(1e6),
    silent_s=st.floats(0.0, 400.0),
)


@given(st.lists(waiting, max_size=6, unique_by=lambda vm: vm.id))
def test_vms_that_wait_end_for_silence_only_while_one_is_heard_or_after_more_than_four_minutes(
    kept: list[KeptVm],
) -> None:
    ended, heard = to_end(kept, 600.0), [vm for vm in kept if vm.silent_s < 3.0]

    for vm in kept:
        if vm.silent_s >= 255.0 or (vm.silent_s >= SILENT_S and heard):
            assert ended[vm.id] == "it fell silent"
        else:
            assert vm.id not in ended
    if len(heard) == 0:
        assert ended.keys() == {vm.id for vm in kept if vm.silent_s >= 255.0}


@given(kept, trials, slots, st.integers(0, 2))
def test_what_a_trial_takes_never_ends_as_unsuited_and_what_another_may_want_stays(
    kept: list[KeptVm], trial: TrialWants, slots: list[OpenSlot], others: int
) -> None:
    ended = unsuited(kept, trial, others)

    assert not ended & set(to_take(kept, trial, slots).values())
    assert others == 0 or not ended


@given(st.dictionaries(st.text(), st.floats(0.0, 100.0), max_size=6), st.floats(0.0, 3600.0))
def test_what_is_set_aside_pays_for_the_rest_of_the_wait(rates: dict[str, float], idle_s: float) -> None:
    at_once = idle_limit_usd(rates, dict.fromkeys(rates, 0.0), idle_s)

    assert at_once == pytest.approx(sum(rates.values()) * idle_s / 3600.0)
    assert idle_limit_usd(rates, dict.fromkeys(rates, idle_s), idle_s) == 0.0
