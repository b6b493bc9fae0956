"""The reconciler on a scripted cloud, fault by fault.

The store is that of the simulations, which `tests/store/test_intents.py` holds to the contract of the real one; one
story is told on the real one too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from fake import Fault
from provisioned import NO_ANSWER, Bench
from provisioning_store import MemoryStore
from sqlalchemy import text

from scavenger.control.provisioning.lease_holder import holder_name, is_known_dead
from scavenger.domain.intent import VmSlot
from scavenger.errors import CloudUnavailableError, ConfigurationError, QuotaError, StoreBusyError
from scavenger.store import Store
from scavenger.store.births import Birth


@pytest.fixture
def bench() -> Bench:
    return Bench(MemoryStore)


def test_what_is_wanted_comes_to_be_joins_is_renewed_and_ends_with_its_job(tmp_path: Path) -> None:
    with ExitStack() as stack:

        def real(now: Callable[[], datetime]) -> Store:
            store = stack.enter_context(Store.open(f"sqlite:///{tmp_path}/store.db", clock=now))
            store.create_job("digits", spec={}, job_file="job.yaml")
            with store._database.writing() as session:
                session.execute(text("UPDATE jobs SET id = 'job'"))
            return store

        bench = Bench(real)
        bench.pass_(30)
        assert [one.state for one in bench.living()] == ["UP", "UP"]
        assert bench.alive() == sorted(one.id for one in bench.living()) == sorted(set(bench.renewed))

        bench.store.finish_job("job", state="succeeded", report=None, exit_code=0)
        bench.pass_(40)
        assert (bench.alive(), bench.store.is_clean("job")) == ([], True)
        assert {one.ending for one in bench.store.intents("job")} == {"unwanted"}


def test_the_prices_of_spot_vms_are_read_again_each_hour_and_what_is_read_is_metered(bench: Bench) -> None:
    hour_s = 3600.0
    bench.cloud.prices = {("small", "fake-1a"): 0.18, ("large", "fake-1a"): 9.0}
    bench.pass_(hour_s - 60.0)
    assert bench.calls("spot_prices") == []
    first_usd = sum(one.charges.spent_usd for one in bench.living())
    assert first_usd == pytest.approx(2 * 0.36, rel=0.03)

    bench.cloud.script("spot_prices", Fault(NO_ANSWER))  # which is tried again
    bench.pass_(180.0)
    assert len(bench.calls("spot_prices")) == 2
    before_usd = sum(one.charges.spent_usd for one in bench.living())
    bench.pass_(hour_s / 2)
    more_usd = sum(one.charges.spent_usd for one in bench.living()) - before_usd
    assert more_usd == pytest.approx(0.18, rel=0.02)  # two VMs for half an hour
    (alarm,) = [one for one in bench.alarms if one.kind == "spot_price"]
    assert "small in fake-1a is $0.1800 an hour now, not $0.3600" in alarm.message

    bench.cloud.prices["small", "fake-1a"] = 9.0  # more than the VMs may cost: the cloud would end them
    bench.pass_(hour_s)
    assert len(bench.calls("spot_prices")) == 3
    before_usd = sum(one.charges.spent_usd for one in bench.living())
    bench.pass_(360.0)
    more_usd = sum(one.charges.spent_usd for one in bench.living()) - before_usd
    assert more_usd == pytest.approx(2 * 0.36 / 10.0, rel=0.02)


@pytest.mark.parametrize("done", [True, False])
def test_a_launch_whose_answer_is_lost_makes_one_vm(bench: Bench, done: bool) -> None:
    bench.cloud.script("launch", Fault(NO_ANSWER, done=done))
    bench.pass_(60)

    assert len(bench.alive()) == len(bench.living()) == 2
    assert {one.generation for one in bench.living()} == {0}


def test_a_launch_that_waits_in_a_queue_is_repeated_with_its_token_costs_nothing_and_has_no_limit_here(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, kind = [True], type(bench.cloud)
    launch, listed = kind.launch, kind.list_owned

    def held(cloud: Any, request: Any) -> Any:
        seen = launch(cloud, request)
        if queue:
            raise CloudUnavailableError("it waits for the queue 'team-a'")
        return seen

    def queued(cloud: Any, owner: str) -> Any:
        return tuple(replace(one, queued=bool(queue)) for one in listed(cloud, owner))

    monkeypatch.setattr(kind, "launch", held)
    monkeypatch.setattr(kind, "list_owned", queued)
    bench.pass_(3 * bench.config.vm.register_s)
    waiting = bench.living()
    assert [(one.state, one.generation) for one in waiting] == [("PLAN", 0)] * 2
    assert max(one.charges.billed_s for one in waiting) <= bench.config.look.interval_s  # until it is listed
    assert len(bench.calls("launch")) > 2

    queue.clear()
    bench.pass_(120)
    assert [(one.state, one.id) for one in bench.living()] == [("UP", one.id) for one in waiting]
    assert bench.alive() == sorted(one.id for one in waiting)


@pytest.mark.parametrize("after", ["the intent", "the launch"])
def test_a_service_that_is_killed_between_intent_and_evidence_goes_on_with_the_same_token(
    bench: Bench, after: str
) -> None:
    steps = bench.service.steps()
    call, answer = next(steps), None
    while not bench.store.intents():
        answer = call()
        call = steps.send(answer)
    if after == "the launch":
        call()
    steps.close()
    (first,) = bench.store.intents()
    assert len(bench.alive()) == (after == "the launch")

    bench.service = bench.start("second")
    bench.pass_(bench.config.lease_s + 60)
    assert first.id in bench.alive()
    assert len(bench.alive()) == len(bench.store.intents()) == 2


def test_a_vm_that_is_seen_late_after_its_job_was_cancelled_is_swept(bench: Bench) -> None:
    bench.cloud.script("launch", *[Fault(NO_ANSWER, done=True)] * 2)
    bench.cloud.hide(10_000)
    bench.service.look()
    bench.want(slots=())
    bench.cloud.script("launch", *[Fault(NO_ANSWER)] * 20)
    bench.pass_(400)
    assert bench.store.is_clean(bench.job_id)
    assert len(bench.alive()) == 2

    bench.cloud.hide(0)
    bench.pass_(120)
    assert bench.alive() == []


def test_a_fresh_vm_that_is_not_listed_is_kept(bench: Bench) -> None:
    bench.cloud.hide(bench.cloud.visibility_s)
    bench.pass_(60)

    assert len(bench.store.intents()) == len(bench.alive()) == 2
    assert bench.calls("describe")


def test_a_vm_that_boots_and_never_joins_is_ended_and_paid_for(bench: Bench) -> None:
    bench.want(slots=(VmSlot(0),))
    bench.service.look()
    (first,) = bench.living()
    bench.silent.add(first.id)
    bench.pass_(bench.config.vm.register_s + 90)

    ended = bench.store.intents()[0]
    assert (ended.state, ended.ending) == ("GONE", "never_joined")
    assert ended.charges.spent_usd == pytest.approx(0.36 * ended.charges.billed_s / 3600)
    assert ended.charges.billed_s >= bench.config.vm.register_s
    assert bench.living()[0].generation == 1


def test_stock_out_goes_to_the_next_zone_where_the_job_stays_while_it_can(bench: Bench) -> None:
    bench.cloud.stock_out("fake-1a")
    bench.pass_(60)
    assert {one.request.zone for one in bench.living()} == {"fake-1b"}

    bench.cloud.stock_out("fake-1a", on=False)
    bench.want(slots=(VmSlot(0), VmSlot(1), VmSlot(2)))
    bench.pass_(60)
    assert {one.request.zone for one in bench.living()} == {"fake-1b"}

    bench.cloud.stock_out("fake-1b")
    bench.want(slots=(VmSlot(0), VmSlot(1), VmSlot(2), VmSlot(3)))
    bench.pass_(60)
    assert {one.request.zone for one in bench.living() if one.slot == 3} == {"fake-1a"}


def test_a_quota_is_named_and_not_run_against_again(bench: Bench) -> None:
    bench.cloud.limit(1)
    bench.pass_(600)

    assert len(bench.calls("launch")) == 2
    assert "quota VMS in fake-1 is used up" in next(
        one.message for one in bench.alarms if one.kind == "quota"
    )
    assert bench.kinds().count("no_quota") == 1


@pytest.mark.parametrize("bills", ["never", "at most"])
def test_what_a_launch_without_an_answer_costs_is_nothing_once_the_cloud_says_so(
    bench: Bench, bills: str
) -> None:
    bench.want(slots=(VmSlot(0),), options=bench.spec.options[:1])
    nobody = [Fault(NO_ANSWER)] * 200
    quota = Fault(QuotaError("no more", quota="CPUS", region="fake-1"))
    bench.cloud.script("launch", *([nobody[0], quota] if bills == "never" else nobody))
    bench.pass_(60)
    (intent,) = bench.store.intents(bench.job_id)
    if bills == "never":
        assert (intent.state, intent.ending) == ("DELETING", "quota"), "the first request may be on its way"
        assert intent.charges.spent_usd > 0.0, "it counts with the budget until it is known"
        bench.pass_(bench.config.settle_s)
        (intent,) = bench.store.intents(bench.job_id)
        assert (intent.state, intent.ending, intent.charges.spent_usd) == ("GONE", "quota", 0.0)
        assert "no_quota" in bench.kinds()
        assert "quota CPUS in fake-1 is used up" in intent.reason
    else:
        assert intent.state == "PLAN"
        assert intent.charges.spent_usd > 0.0, "it counts with the budget until it is known"


def test_the_only_vm_that_hangs_is_replaced_within_two_minutes_if_the_clouds_own_checks_find_it_broken(
    bench: Bench,
) -> None:
    bench.want(slots=(VmSlot(0),))
    bench.pass_(60)
    (hung,) = bench.living()
    bench.silent.add(hung.id)
    bench.pass_(120)
    assert [one.id for one in bench.living()] == [hung.id], "it may be the network"

    bench.cloud.broken_vms[hung.instance_id] = "a status check has failed"
    bench.pass_(60)
    assert [one.generation for one in bench.living()] == [1]
    (ended,) = [one for one in bench.store.intents() if one.id == hung.id]
    assert (ended.state, ended.ending, ended.reason) == ("GONE", "died", "a status check has failed")
    assert len(bench.calls("impaired")) < 15, "it is asked for what is silent, every 15 s"


def test_throttling_slows_everything_and_breaks_nothing(bench: Bench) -> None:
    bench.cloud.throttle(6)
    bench.pass_(300)

    assert len(bench.alive()) == 2
    assert {one.generation for one in bench.living()} == {0}


def test_each_look_lists_until_the_cloud_throttles_and_then_fewer_do(bench: Bench) -> None:
    def lists() -> int:
        before = len(bench.calls("list_owned"))
        bench.pass_(150)
        return len(bench.calls("list_owned")) - before

    often = lists()
    bench.cloud.throttle(1)
    seldom = lists()
    bench.pass_(600)

    assert often == pytest.approx(150 / bench.config.look.interval_s, abs=5)
    assert seldom <= 150 / 15.0 + 1
    assert lists() == pytest.approx(often, abs=2)


def test_revoked_credentials_never_make_a_job_clean_and_deletes_go_on_for_ever(bench: Bench) -> None:
    bench.pass_(60)
    bench.cloud.deny()
    bench.want(slots=())
    bench.pass_(900)
    assert not bench.store.is_clean(bench.job_id)
    assert {"undeletable", "credentials"} <= set(bench.kinds())
    assert all(one.instance_id for one in bench.living())

    bench.cloud.deny(on=False)
    bench.pass_(300)
    assert bench.store.is_clean(bench.job_id)


def test_a_preempted_vm_is_replaced_by_the_next_generation(bench: Bench) -> None:
    bench.pass_(60)
    (lost, kept) = bench.living()
    bench.cloud.preempt(lost.instance_id)
    bench.pass_(60)

    assert {(one.slot, one.generation) for one in bench.living()} == {(lost.slot, 1), (kept.slot, 0)}
    assert next(one for one in bench.store.intents() if one.id == lost.id).ending == "preempted"


def test_foreign_vms_are_not_touched(bench: Bench) -> None:
    foreign = bench.cloud.add_foreign("fake-1a")
    bench.pass_(60)
    bench.want(slots=())
    bench.pass_(2000)

    assert foreign not in bench.calls("terminate")
    assert [fact.instance_id for fact in bench.cloud.truth() if fact.alive] == [foreign]


def test_a_clock_that_jumps_makes_nothing_expire(bench: Bench) -> None:
    bench.pass_(60)
    before = bench.living()
    for jump_s in (3600.0, -7200.0):
        bench.wall_jump_s += jump_s
        bench.pass_(60)

    assert [one.id for one in bench.living()] == [one.id for one in before]
    assert sum(one.charges.spent_usd for one in bench.living()) < 0.36 * 2 * 200 / 3600


def test_the_budget_is_not_crossed_and_the_end_is_told_before(bench: Bench) -> None:
    bench.want(budget_usd=0.40)
    bench.pass_(3000)

    assert bench.store.is_clean(bench.job_id)
    assert {one.ending for one in bench.store.intents()} == {"budget"}
    assert sum(one.charges.spent_usd for one in bench.store.intents()) <= 0.40
    assert "budget" in bench.kinds()


def test_no_more_is_started_once_most_vms_die_before_they_join(bench: Bench) -> None:
    bench.want(slots=(VmSlot(0),))
    bench.deaf = True
    for _ in range(100):
        bench.pass_(20)
        for intent in bench.living():
            bench.cloud.delete_by_hand(intent.instance_id)

    assert len(bench.store.intents()) == bench.config.crash_loop.deaths_min
    assert bench.kinds().count("loop") == 1
    bench.want(attempt=2)
    bench.pass_(30)
    assert len(bench.store.intents()) > bench.config.crash_loop.deaths_min


class TestTwoServices:
    def test_one_acts_while_it_lives_and_the_other_after_that(self, bench: Bench) -> None:
        other = bench.start("second")
        for _ in range(60):
            bench.pass_(5)
            assert not other.look()
        assert len(bench.calls("launch")) == 2

        bench.cloud.advance(bench.config.lease_s)
        assert other.look()
        assert not bench.service.look()

    def test_a_lease_that_was_given_back_is_taken_at_once(self, bench: Bench) -> None:
        bench.pass_(5)
        bench.service.release()

        assert bench.start("second").look()

    def test_nobody_waits_for_the_lease_of_one_that_is_known_to_be_dead(self, bench: Bench) -> None:
        bench.pass_(5)
        assert not bench.start("second").look()
        assert bench.start("second", is_dead=lambda holder: holder == "first").look()

    def test_one_that_was_stopped_before_a_launch_does_not_make_it_after_its_lease(
        self, bench: Bench
    ) -> None:
        steps = bench.service.steps()
        call = next(steps)
        while not bench.store.intents():
            call = steps.send(call())
        launches = len(bench.calls("launch"))
        bench.cloud.advance(bench.config.lease_s + 1)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - private to the reconciler
            call()
        with pytest.raises(StopIteration) as end:
            steps.throw(caught.value)

        assert end.value.value is False
        assert len(bench.calls("launch")) == launches
        assert not bench.service.acts


def test_it_runs_until_it_is_told_to_stop_and_outlives_a_store_that_is_held(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, failures, looks = Event(), [], 0
    monkeypatch.setattr(stop, "wait", lambda timeout: None)
    real = bench.store.situation

    def held(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise StoreBusyError("held")
        stop.set()
        return real(*arguments)

    monkeypatch.setattr(bench.store, "situation", held)
    bench.service.run(stop, failures.append)

    assert (looks, [str(one) for one in failures]) == (2, ["held"])
    assert len(bench.alive()) == 2
    lease = bench.store.lease("fake/fake-1")
    assert lease is not None
    assert lease.holder == ""


def test_a_process_is_known_to_be_dead_only_where_it_ran() -> None:
    name = holder_name()
    assert not is_known_dead(name)
    host, pid, started = name.rsplit("/", 2)
    child = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    )
    assert is_known_dead(f"{host}/{child.stdout.strip()}/{started}")
    birth = Birth.parse(started)
    assert birth is not None
    assert is_known_dead(f"{host}/{pid}/{replace(birth, ticks=birth.ticks - 1)}")
    for other in (f"elsewhere/{pid}/1.00", f"{host}/{pid}/1.00", "first", "", f"{host}/x/1"):
        assert not is_known_dead(other)


def test_a_place_that_never_answers_is_left_for_another(bench: Bench) -> None:
    bench.want(slots=(VmSlot(0),))
    bench.cloud.script("launch", *[Fault(NO_ANSWER)] * 30)
    bench.pass_(bench.config.vm.register_s + 10)
    bench.cloud._scripts.clear()
    bench.pass_(200)
    first, *others = bench.store.intents()

    assert (first.state, first.ending) == ("GONE", "unanswered")
    assert others[0].request.zone == "fake-1b"
    assert len(bench.alive()) == 1


def test_of_several_launches_in_one_look_one_is_refused_and_the_others_go_elsewhere(bench: Bench) -> None:
    bench.want(slots=tuple(VmSlot(slot) for slot in range(4)))
    bench.cloud.stock_out("fake-1a")
    bench.pass_(20)

    assert len(bench.calls("launch")) == 5
    assert len(bench.alive()) == 4


def test_a_place_that_the_cloud_refuses_is_named_and_left(bench: Bench) -> None:
    bench.cloud.script("launch", Fault(ConfigurationError("no such image")))  # type: ignore[arg-type]
    bench.want(slots=(VmSlot(0),), options=bench.spec.options[:1])
    bench.pass_(200)

    assert len(bench.calls("launch")) == 1
    assert {"refused", "no_placement"} <= set(bench.kinds())
    bench.want(image="another")
    bench.pass_(10)
    assert len(bench.alive()) == 1


def test_the_zones_of_a_type_are_tried_one_after_another_without_a_pause(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for zone in bench.cloud.places:
        bench.cloud.stock_out(zone)
    stop = Event()
    monkeypatch.setattr(stop, "wait", lambda timeout: stop.set())  # at the first pause, it is over
    bench.service.run(stop, lambda error: None)

    options = {one.option.key for one in bench.store.intents(bench.job_id)}
    assert options == {option.key for option in bench.spec.options}
    assert "sold_out" in bench.kinds()
    assert bench.alive() == []
