"""What is decided of VMs, case by case; the simulation in `tests/provisioning` has all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_intents import made_intent
from nested import built, changed

from scavenger.control.provisioning.fleet_agents import ACKNOWLEDGE_S
from scavenger.domain.intent import (
    HEARD_LATE_S,
    FleetSpec,
    Intent,
    IntentHistory,
    PlacementOption,
    RegionSnapshot,
    VmSlot,
)
from scavenger.domain.vm import VmSeen
from scavenger.policy.provisioning import actions as act
from scavenger.policy.provisioning.config import Backoff, LookLimits, ProvisioningConfig, VmLimits
from scavenger.policy.provisioning.decider import DENIED, THROTTLE, decide, ending_of
from scavenger.policy.provisioning.memory import Memory
from scavenger.policy.provisioning.money import Account, charges
from scavenger.train.engines.vm.silence_watch import KEEP_S

OWNER = "me"
CONFIG = ProvisioningConfig(visibility_s=30.0)
A, B = PlacementOption("small", "a", True, 0.36), PlacementOption("small", "b", False, 1.2)
WANTED = built(
    FleetSpec,
    job_id="job",
    provider="sim",
    region="r",
    slots=(VmSlot(0), VmSlot(1)),
    options=(A, B),
    vms_max=4,
    budget_usd=float("inf"),
    run_max_s=3600.0,
)
AT = datetime(2026, 1, 1, tzinfo=UTC)


def intent(token: str = "t0", state: Any = "UP", *, slot: int = 0, **more: Any) -> Intent:
    ending = "unwanted" if state == "DELETING" else ""
    known = {"instance_id": "" if state == "PLAN" else f"i-{token}", "ending": ending}
    return made_intent(
        {"token": token, "owner": OWNER, "slot": slot, "spot": True}, state=state, **known | more
    )


def vm(token: str = "t0", state: Any = "running", **more: Any) -> VmSeen:
    given = {"instance_id": f"i-{token}", "owner": OWNER, "token": token} | more
    return built(VmSeen, vm="small", zone="a", spot=True, state=state, **given)


def past(*health: bool, **more: Any) -> dict[str, IntentHistory]:
    return {"job": IntentHistory(health=health, **more)}


class Scene:
    """A situation that is looked at from time to time; `decide` is asked at the last look."""

    def __init__(self, *intents: Intent, config: ProvisioningConfig = CONFIG, **more: Any) -> None:
        given: dict[str, Any] = {"fleets": (WANTED,), "ended": frozenset(), "past": past()}
        self.situation = RegionSnapshot(intents=intents, **(given | more))
        self.config, self.memory, self.now_s = config, Memory(), 0.0

    def look(self, listed: Iterable[VmSeen] | None = None, *, after_s: float = 0.0) -> tuple[act.Action, ...]:
        """So many attended seconds after the look before."""
        steps = max(1, round(after_s / CONFIG.look.interval_s))
        for _ in range(steps):
            self.now_s += after_s / steps
            self.memory.attend(self.now_s, self.config.gap_max_s)
            pulse = IntentHistory(**{**_fields(self.situation.past["job"]), "pulse": str(self.now_s)})
            self.situation = replace(self.situation, past={"job": pulse})
            listing = None if listed is None else act.Listing(tuple(listed), self.memory.attended_s)
            self.memory.note(self.situation, listing)
        return decide(
            self.situation, listing, self.memory, self.config, owner=OWNER, now_s=self.now_s, rng=Random(1)
        )

    def change(self, *intents: Intent, **more: Any) -> None:
        self.situation = changed(self.situation, intents=intents or self.situation.intents, **more)


def _fields(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in type(one).__dataclass_fields__}


def kinds(actions: Iterable[act.Action]) -> list[str]:
    return [type(action).__name__ for action in actions]


def only(actions: Iterable[act.Action], kind: type[Any]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


class TestCreating:
    def test_each_vacant_slot_gets_an_intent_in_the_first_place_that_is_open(self) -> None:
        created = [one.intent for one in only(Scene().look(), act.Create)]

        assert [(one.slot, one.generation, one.option) for one in created] == [(0, 0, A), (1, 0, A)]
        assert all(one.id == one.request.tags.token and one.request.tags.owner == OWNER for one in created)
        assert len({one.id for one in created}) == 2

    def test_the_reservation_is_the_price_times_the_time_to_drain(self) -> None:
        (first, _) = only(Scene().look(), act.Create)

        assert first.intent.charges.reserved_usd == pytest.approx(
            0.36 * CONFIG.reserved_s(WANTED.drain_s) / 3600
        )

    def test_a_spot_vm_may_cost_what_is_metered_and_no_more(self) -> None:
        assert [one.intent.request.usd_per_hour_max for one in only(Scene().look(), act.Create)] == [
            0.36,
            0.36,
        ]
        on_demand = only(Scene(fleets=(replace(WANTED, options=(B,)),)).look(), act.Create)
        assert [one.intent.request.usd_per_hour_max for one in on_demand] == [None, None]

    def test_a_slot_is_filled_again_by_the_next_generation(self) -> None:
        scene = Scene(intent(), past=past(generations={0: 0, 1: 6}))
        assert [one.intent.generation for one in only(scene.look(), act.Create)] == [7]

    def test_a_slot_of_a_later_generation_replaces_the_vm_there_is(self) -> None:
        slots = (VmSlot(0, 3),)
        scene = Scene(intent(), fleets=(replace(WANTED, slots=slots),), past=past(generations={0: 0}))
        assert kinds(scene.look()) == ["Drain"]

        scene.change(intent(state="DELETING"))
        assert [one.intent.generation for one in only(scene.look(), act.Create)] == [3]

    def test_vms_that_are_to_end_count_for_the_cap(self) -> None:
        wanted = replace(WANTED, vms_max=2)
        scene = Scene(intent("t0", "DELETING"), intent("t1", "DELETING", slot=1), fleets=(wanted,))
        assert not only(scene.look(), act.Create)

    def test_one_look_starts_a_few_and_no_job_waits_for_all_of_another(self) -> None:
        many = tuple(VmSlot(slot) for slot in range(9))
        jobs = tuple(replace(WANTED, job_id=f"job-{n}", slots=many, vms_max=9) for n in range(4))
        created = only(Scene(fleets=jobs).look(), act.Create)

        assert len(created) == CONFIG.look.creates_max
        assert {one.intent.job_id for one in created} == {one.job_id for one in jobs}

    def test_a_place_that_is_sold_out_is_passed_over_and_with_none_left_it_is_said(self) -> None:
        scene = Scene()
        scene.look()
        scene.memory.wait(("park", *A.key), CONFIG.waits.sold_out, scene.now_s, Random(0))
        assert {one.intent.option for one in only(scene.look(), act.Create)} == {B}

        scene.memory.wait(("park", *B.key), CONFIG.waits.sold_out, scene.now_s, Random(0))
        (alarm,) = scene.look()
        assert alarm == act.Alarm(
            "sold_out",
            "job",
            "sold out, to be tried again later: small (spot) in a; small in b; what may help: other VM types "
            "(resources.any_of), or another region (infra)",
        )
        later = scene.look(after_s=2 * CONFIG.waits.sold_out.base_s)
        assert only(later, act.Create)
        assert only(later, act.Alarm) == [alarm], (
            "it holds until a launch succeeds, however slow the looks are"
        )
        scene.memory.done(("park", *B.key))
        assert not only(scene.look(), act.Alarm)

    def test_what_may_help_against_a_stock_out_is_what_was_not_tried(self) -> None:
        scene = Scene(fleets=(replace(WANTED, options=(A,)),))
        scene.memory.wait(("park", *A.key), CONFIG.waits.sold_out, scene.now_s, Random(0))

        (alarm,) = only(scene.look(), act.Alarm)

        assert alarm.message.endswith(
            "what may help: other VM types (resources.any_of), on-demand VMs (spot: auto), other zones (infra without "
            "a zone), or another region (infra)"
        )

    def test_a_job_may_know_that_its_vms_join_sooner_than_the_reconciler_expects(self) -> None:
        scene = Scene(intent("t0", "UP"), fleets=(replace(WANTED, slots=(VmSlot(0),), register_s=100.0),))
        assert not only(scene.look(), act.Drain)

        actions = scene.look(after_s=101.0)

        assert [(one.ending, one.reason) for one in only(actions, act.Drain)] == [
            ("never_joined", "it was up for 100 s and did not join")
        ]

    def test_a_job_stays_in_the_zone_where_it_is_once_capacity_is_back_elsewhere(self) -> None:
        spots = tuple(PlacementOption("small", zone, True, 0.36) for zone in "abc")
        dear = tuple(PlacementOption("small", zone, False, 1.2) for zone in "abc")
        spec = changed(WANTED, slots=tuple(VmSlot(i) for i in range(4)), options=spots + dear)
        there = changed(intent("t0"), zone="b", spot=False), changed(intent("t1", slot=1), zone="c")
        scene = Scene(*there, fleets=(spec,))

        assert [one.intent.option for one in only(scene.look(), act.Create)] == [spots[1], spots[1]]
        scene.memory.wait(("park", *spots[1].key), CONFIG.waits.sold_out, scene.now_s, Random(1))
        # the aggregators' zone has none: where the other worker is, and no dearer kind near them
        assert [one.intent.option for one in only(scene.look(), act.Create)] == [spots[2], spots[2]]

    def test_what_is_wanted_in_vain_is_told_while_launches_without_an_answer_take_all_room(self) -> None:
        unknown = [intent(f"t{slot}", "DELETING", slot=slot, instance_id="") for slot in (0, 1)]
        scene = Scene(*unknown, fleets=(replace(WANTED, vms_max=2),))
        for option in (A, B):
            scene.memory.barred["quota", option.vm, option.spot] = "quota CPUS in r is used up"
        assert not only(scene.look(), act.Create)
        assert [one.kind for one in only(scene.look(), act.Alarm) if one.about == "job"] == ["no_quota"]

    def test_a_quota_bars_its_type_in_every_zone_until_a_vm_of_it_ends(self) -> None:
        both = (A, replace(A, zone="b"))
        scene = Scene(fleets=(replace(WANTED, options=both),))
        scene.memory.barred["quota", A.vm, A.spot] = "quota CPUS in r is used up"
        for _ in range(3):
            actions = scene.look(after_s=3600.0)
            assert not only(actions, act.Create)
            assert "no more VMs can be had: quota CPUS in r is used up" in {
                one.message for one in only(actions, act.Alarm)
            }

        scene.memory.freed(both[1])
        assert only(scene.look(), act.Create)

    @pytest.mark.parametrize("key", [DENIED, ("create", "job")], ids=str)
    def test_nothing_is_created_while_it_has_to_wait(self, key: tuple[str, ...]) -> None:
        scene = Scene()
        scene.memory.wait(key, Backoff(60.0, 60.0), 0.0, Random(0))
        assert not scene.look()
        assert only(scene.look(after_s=90.0), act.Create)

    @pytest.mark.parametrize(
        ("health", "stops"),
        [
            ([False] * 4, False),
            ([False] * 5, True),
            ([True] * 6 + [False] * 4, False),
            ([True] * 5 + [False] * 5, True),
            ([True] * 10 + [False] * 9, False),
        ],
    )
    def test_a_loop_of_creating_and_dying_ends(self, health: list[bool], stops: bool) -> None:
        actions = Scene(past=past(*health)).look()
        assert bool(only(actions, act.Create)) is not stops
        assert [one.kind for one in only(actions, act.Alarm)] == ["loop"] * stops

    def test_a_job_that_nobody_drives_gets_no_vms(self) -> None:
        scene = Scene()
        scene.look()
        for _ in range(round(CONFIG.vm.silence_s / CONFIG.look.interval_s) + 1):
            scene.now_s += CONFIG.look.interval_s
            scene.memory.attend(scene.now_s, CONFIG.gap_max_s)
            scene.memory.note(scene.situation, None)
        assert not decide(
            scene.situation, None, scene.memory, CONFIG, owner=OWNER, now_s=scene.now_s, rng=Random(1)
        )


class TestEvidence:
    def test_a_vm_with_the_token_of_a_plan_is_adopted(self) -> None:
        seen = vm()
        assert act.Adopt(intent(state="PLAN"), seen) in Scene(intent(state="PLAN")).look([seen])

    def test_a_launch_without_an_answer_is_repeated_with_its_token(self) -> None:
        assert act.Retry(intent(state="PLAN")) in Scene(intent(state="PLAN")).look([])

    @pytest.mark.parametrize("state", ["UP", "DELETING"])
    def test_a_vm_that_is_not_listed_is_looked_at_and_not_taken_for_gone(self, state: str) -> None:
        actions = Scene(intent(state=state)).look([])
        assert act.PollVm(intent(state=state)) in actions
        assert not only(actions, act.MarkGone)

    def test_a_vm_that_is_seen_gone_is_gone(self) -> None:
        seen = vm(state="gone", reason="compute.instances.preempted")
        assert act.MarkGone(intent(), "preempted", seen.reason, seen) in Scene(intent()).look([seen])

    def test_an_unanswered_launch_that_nobody_wants_any_more_is_gone_only_after_it_would_have_shown(
        self,
    ) -> None:
        plan = intent(state="PLAN")
        scene = Scene(plan, fleets=())
        assert scene.look([]) == (act.Drain(plan, "unwanted", "its job has ended"),)

        deleting = intent(state="DELETING", instance_id="")
        scene.change(deleting)
        scene.look([])
        assert scene.look([], after_s=CONFIG.settle_s - 5) == ()
        assert kinds(scene.look([], after_s=5)) == ["MarkGone"]
        assert kinds(scene.look([vm()])) == ["Adopt"]

    @pytest.mark.parametrize(
        ("remembers_s", "billed_s", "never"),
        [(600.0, 200.0, True), (600.0, 700.0, False), (0.0, 200.0, False)],
    )
    def test_a_launch_that_listings_would_have_shown_since_is_never_paid_for(
        self, remembers_s: float, billed_s: float, never: bool
    ) -> None:
        deleting = intent(state="DELETING", instance_id="", billed_s=billed_s)
        scene = Scene(deleting, config=replace(CONFIG, remembers_s=remembers_s), fleets=())
        scene.look([])
        (gone,) = only(scene.look([], after_s=CONFIG.settle_s), act.MarkGone)
        assert gone.never is never

    def test_a_plan_that_was_never_asked_for_is_gone_at_once(self) -> None:
        plan = intent(state="PLAN", asked=False)
        gone = act.MarkGone(plan, "unwanted", "its job has ended", never=True)
        assert Scene(plan, fleets=()).look() == (gone,)

    def test_an_ending_is_told_in_the_clouds_words_unless_it_was_ours(self) -> None:
        assert ending_of(intent(), vm(reason="Server.SpotInstanceTermination"))[0] == "preempted"
        assert ending_of(intent(), vm(reason="kernel panic")) == ("died", "kernel panic")
        assert ending_of(intent(state="DELETING", ending="silent"), None)[0] == "silent"


class TestEnding:
    def test_a_vm_that_never_joins_is_ended_after_the_time_to_register(self) -> None:
        scene = Scene(intent())
        scene.look()
        assert not only(scene.look(after_s=CONFIG.vm.register_s - 5), act.Drain)
        (drain,) = only(scene.look(after_s=5), act.Drain)
        assert drain.ending == "never_joined"

    def test_one_that_falls_silent_is_ended_but_where_all_do_it_is_not_their_fault(self) -> None:
        scene = Scene(intent("t0", acks=1), intent("t1", acks=1, slot=1))
        scene.look()
        actions = scene.look(after_s=CONFIG.vm.silence_s)
        assert not only(actions, act.Drain)
        assert [one.kind for one in only(actions, act.Alarm)] == ["silence"]
        assert not only(actions, act.ExtendLife)

        scene.change(intent("t0", acks=1), intent("t1", acks=2, slot=1))
        (drain,) = only(scene.look(), act.Drain)
        assert (drain.intent.id, drain.ending) == ("t0", "silent")

    @pytest.mark.parametrize("vms", [1, 2, 3, 8])
    @pytest.mark.parametrize("cut_s", [5, 25, 60, 150, 230])
    def test_no_vm_is_ended_for_a_network_that_is_cut_for_less_than_four_minutes(
        self, vms: int, cut_s: int
    ) -> None:
        """What is heard of VMs is recorded at times of their own, so each passes any limit alone."""
        heard = {number: intent(f"t{number}", acks=1, slot=number) for number in range(vms)}
        slots = tuple(replace(WANTED.slots[0], number=number) for number in range(vms))
        scene = Scene(*heard.values(), fleets=(replace(WANTED, slots=slots, vms_max=16),))
        beats = dict.fromkeys(heard, 0)
        for second in range(30 + cut_s + 60):
            for number, one in heard.items():
                beat = int((second + number * ACKNOWLEDGE_S / vms) // ACKNOWLEDGE_S)
                if not 30 <= second < 30 + cut_s and beat != beats[number]:
                    heard[number], beats[number] = replace(one, acks=one.acks + 1), beat
            scene.change(*heard.values())
            assert not only(scene.look(after_s=1.0), act.Drain)

    def test_vms_are_waited_for_longer_than_their_processes(self) -> None:
        assert VmLimits().silence_s > KEEP_S + ACKNOWLEDGE_S

    def test_time_that_nobody_attended_to_makes_nothing_expire(self) -> None:
        scene = Scene(intent("t0", acks=1), intent("t1", slot=1))
        scene.look()
        scene.now_s += 1e6
        scene.memory.attend(scene.now_s, CONFIG.gap_max_s)

        assert not only(scene.look(), act.Drain)

    def test_an_end_is_asked_for_again_until_it_is_seen_and_an_alarm_is_raised(self) -> None:
        scene = Scene(intent(state="DELETING"), fleets=())
        for _ in range(CONFIG.alarm_after):
            assert act.Terminate(intent(state="DELETING")) in scene.look(after_s=2 * CONFIG.waits.call.cap_s)
            scene.memory.wait(("terminate", "t0"), CONFIG.waits.call, scene.now_s, Random(0))
            assert not only(scene.look(), act.Terminate)
        assert [one.kind for one in only(scene.look(), act.Alarm)] == ["undeletable"]

    def test_only_vms_that_joined_and_are_heard_of_live_on(self) -> None:
        scene = Scene(intent("t0"), intent("t1", acks=1, slot=1))
        assert [one.intent.id for one in only(scene.look(), act.ExtendLife)] == ["t1"]


class TestSweeping:
    def test_a_vm_whose_intent_has_ended_is_swept_once_it_is_old_enough(self) -> None:
        scene = Scene(fleets=(), ended=frozenset({"t9"}))
        assert scene.look([vm("t9")]) == ()
        assert scene.look([vm("t9")], after_s=CONFIG.visibility_s) == (
            act.Sweep(vm("t9"), "intent t9 has ended"),
        )

    def test_one_that_the_store_knows_nothing_of_is_told_of_for_a_while_first(self) -> None:
        scene = Scene(fleets=())
        scene.look([vm("t9")])
        assert kinds(scene.look([vm("t9")], after_s=CONFIG.visibility_s)) == ["Alarm"]
        assert kinds(scene.look([vm("t9")], after_s=CONFIG.vm.quarantine_s)) == ["Sweep"]

    def test_after_a_restore_one_that_the_store_does_not_know_is_in_quarantine_for_good(self) -> None:
        scene = Scene(fleets=(), ended=frozenset({"t8"}), restored=True)
        seen = [vm("t9"), vm("t8", instance_id="i-8")]
        assert scene.look(seen) == (act.Quarantine((vm("t9"),)),)
        actions = scene.look(seen, after_s=10 * CONFIG.vm.quarantine_s)

        assert [one.vm.tags.token for one in only(actions, act.Sweep)] == ["t8"]
        assert [one.kind for one in only(actions, act.Alarm)] == ["unknown_vm"]
        assert only(actions, act.Quarantine) == [act.Quarantine((vm("t9"),))]

    def test_a_second_vm_of_an_intent_is_swept(self) -> None:
        double = vm(instance_id="i-other")
        scene = Scene(intent(acks=1))
        scene.look([vm(), double])
        assert [
            one.vm for one in only(scene.look([vm(), double], after_s=CONFIG.visibility_s), act.Sweep)
        ] == [double]

    @pytest.mark.parametrize("owner", ["", "you", "me2"])
    def test_a_foreign_vm_is_never_touched(self, owner: str) -> None:
        scene = Scene(fleets=(), ended=frozenset({"t9"}))
        for _ in range(3):
            assert scene.look([vm("t9", owner=owner)], after_s=CONFIG.vm.quarantine_s) == ()


class TestMoney:
    def test_no_vm_is_started_that_the_rest_of_the_budget_would_not_carry_to_its_end(self) -> None:
        need = 0.36 * CONFIG.reserved_s(WANTED.drain_s) / 3600
        actions = Scene(fleets=(replace(WANTED, budget_usd=1.5 * need),)).look()

        assert len(only(actions, act.Create)) == 1
        assert [one.kind for one in only(actions, act.Alarm)] == ["unaffordable"]

    def test_at_the_budget_it_is_told_first_and_the_vms_end_when_the_job_had_its_time(self) -> None:
        drain_usd = 0.36 * WANTED.drain_s / 3600
        one = intent(acks=1, spent_usd=0.5)
        told = Scene(one, fleets=(replace(WANTED, slots=(VmSlot(0),), budget_usd=0.6),)).look()
        assert kinds(told) == ["ExtendLife", "Alarm"]

        over = replace(WANTED, slots=(VmSlot(0),), budget_usd=0.6 - drain_usd)
        (drain, *_) = Scene(one, fleets=(over,)).look()
        assert (type(drain), drain.ending) == (act.Drain, "budget")

    def test_a_budget_that_was_used_up_is_not_picked_at_again(self) -> None:
        actions = Scene(past=past(drained=True), fleets=(replace(WANTED, budget_usd=9.0),)).look()
        assert [one.kind for one in actions if isinstance(one, act.Alarm)] == ["budget"]
        assert len(actions) == 1

    def test_a_price_that_jumps_is_charged_from_then_on(self) -> None:
        scene, memory = Scene(intent(charged_at=AT)), Memory()
        memory.charged_s = {"t0": 0.0}
        assert charges(scene.situation, memory, 3600.0, AT, 900.0) == {"t0": (3600.0, pytest.approx(0.36))}

        dearer = replace(WANTED, options=(replace(A, price_usd_per_hour=1.0),))
        scene.change(fleets=(dearer,))
        assert charges(scene.situation, memory, 3600.0, AT, 900.0) == {"t0": (3600.0, pytest.approx(1.0))}

    @given(st.integers(-10_000_000, 10_000_000) | st.integers(-1, 901))
    def test_what_nobody_attended_to_is_charged_by_the_wall_unless_that_cannot_be(self, gap_s: int) -> None:
        scene = Scene(intent(charged_at=AT))
        wall = AT + timedelta(seconds=gap_s)
        ((seconds, _),) = charges(scene.situation, Memory(), 5.0, wall, 900.0).values()

        assert seconds == (gap_s if 0 <= gap_s <= 900 else 900.0)

    @pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
    def test_a_price_that_is_none_is_refused(self, price: float) -> None:
        with pytest.raises(ValueError, match="has no price"):
            PlacementOption("small", "a", True, price)


class TestThrottling:
    def test_while_it_lasts_nobody_calls_but_what_is_known_is_written(self) -> None:
        scene = Scene(intent("t0", "DELETING"), intent("t1", "PLAN", slot=1))
        scene.memory.wait(THROTTLE, Backoff(60.0, 60.0), 0.0, Random(0))
        assert scene.look([vm("t0", "gone"), vm("t1")]) == (
            act.MarkGone(intent("t0", "DELETING"), "unwanted", "", vm("t0", "gone")),
            act.Adopt(intent("t1", "PLAN", slot=1), vm("t1")),
        )

    @given(st.integers(1, 10_000), st.integers(0, 2**32))
    def test_waits_grow_to_their_cap_and_no_two_keep_step(self, times: int, seed: int) -> None:
        backoff = Backoff(2.0, 60.0)
        wait_s = backoff.wait_s(times, Random(seed))
        assert 0.5 * min(60.0, 2.0 ** min(times, 6)) <= wait_s <= 1.5 * 60.0
        assert backoff.wait_s(times, Random(seed + 1)) != wait_s


@pytest.mark.parametrize(
    ("vms", "throttled", "calls_a_minute"),
    [(0, False, 17), (999, False, 34), (1499, False, 51), (5000, False, 36), (1000, True, 12)],
)
def test_listings_are_as_frequent_as_the_clouds_limits_allow(
    vms: int, throttled: bool, calls_a_minute: int
) -> None:
    limits = LookLimits()
    again_s = limits.list_again_s(vms, throttled=throttled)

    assert (again_s < limits.wait_s(0.0, 0.0)) == (vms < 1500 and not throttled), "each look lists"
    between_s = max(again_s, limits.wait_s(0.0, 0.5))  # a listing is part of a look
    assert (vms // 500 + 1) * 60.0 / between_s == pytest.approx(calls_a_minute, abs=0.5)


@given(st.floats(0.0, 600.0), st.floats(0.0, 1.0, exclude_max=True))
def test_an_end_is_on_record_within_an_interval_where_looks_are_short(took_s: float, chance: float) -> None:
    limits = LookLimits()
    wait_s = limits.wait_s(took_s, chance)

    assert wait_s >= limits.pause_s
    if (
        took_s <= limits.interval_s / 10
    ):  # the end comes when the first look has listed, and the second records it
        assert took_s + wait_s + took_s <= limits.interval_s
    assert took_s + wait_s <= max(limits.interval_s, took_s + limits.pause_s)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: VmLimits(register_s=900.0),
        lambda: VmLimits(silence_s=400.0),
        lambda: replace(CONFIG, look=LookLimits(call_s=61.0)),
        lambda: LookLimits(creates_max=0),
    ],
)
def test_limits_that_contradict_each_other_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"must|needs|fit"):
        wrong()


@pytest.mark.parametrize(
    "wrong",
    [
        {"slots": (VmSlot(0), VmSlot(0))},
        {"options": ()},
        {"vms_max": 1},
        {"budget_usd": float("nan")},
        {"budget_usd": -1.0},
        {"run_max_s": 0.0},
    ],
    ids=str,
)
def test_fleet_specs_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"slot|placement|wanted|budget|runs"):
        changed(WANTED, **wrong)


def test_a_vm_that_is_neither_listed_nor_heard_is_charged_until_it_has_ended_itself() -> None:
    scene = Scene(intent(acks=1))
    scene.look([vm()])
    life_s = CONFIG.vm.life_s

    def charged() -> bool:
        return bool(charges(scene.situation, scene.memory, scene.now_s, AT, life_s))

    scene.look(after_s=life_s)
    assert charged()
    scene.look(after_s=2 * HEARD_LATE_S)
    assert not charged()
    scene.look([vm()])
    assert charged(), "it is listed: its timer has failed"


def test_a_process_that_begins_charges_a_vm_that_it_never_sees_no_longer_than_until_it_has_ended_itself() -> (
    None
):
    """Credentials are refused, and commands come and go: each knows only from the store when the VM was heard last."""
    life_s = CONFIG.vm.life_s
    one = intent(acks=1, created_at=AT, last_ack_at=AT, charged_at=AT)
    billed_s = 0.0
    for hour in range(1, 4):
        scene, wall = Scene(one), AT + timedelta(hours=hour)
        scene.look(after_s=1.0)
        for _ in range(2):
            added = charges(scene.situation, scene.memory, scene.now_s, wall, life_s)
            seconds, _usd = added.get("t0", (0.0, 0.0))
            billed_s += seconds
            one = changed(one, billed_s=billed_s, charged_at=wall if seconds else one.charges.charged_at)
            scene.memory.charged_s["t0"] = scene.now_s
            scene.change(one)
            scene.look(after_s=600.0)

    assert billed_s == pytest.approx(life_s)


def test_disk_and_address_count_against_the_budget() -> None:
    extras = {"disk_usd_per_hour": 0.03, "address_usd_per_hour": 0.006}
    one = intent(billed_s=3600.0, spent_usd=0.36, **extras)
    account = Account(Scene(one).situation, "job", CONFIG)

    assert account.rate_usd_per_hour == pytest.approx(0.396)
    assert account.committed_usd == pytest.approx(0.396 + 0.1)
