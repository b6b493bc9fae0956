"""A leader that slept, or was stopped, does not hold that time against its VMs; those that are gone are gone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.elastic.liveness import HEARTBEAT_S, Liveness
from scavenger.elastic.outage import NetworkOutage
from scavenger.train.engines.vm.channel import HEARTBEAT_S as AGENT_BEATS_S
from scavenger.train.engines.vm.silence_watch import LOST_S, SilenceWatch
from scavenger.train.engines.vm.values import AgentSession, AgentSpec

AWAY_S = 18 * 60.0


class Leader:
    """One that looks every tenth of a second while it is awake, at VMs that it hears or not."""

    def __init__(self) -> None:
        self.now = 0.0
        self.watch = SilenceWatch(LOST_S, self.now)
        self.vms = [AgentSession(AgentSpec(name, "small", "worker", 1, 1)) for name in "abc"]
        for vm in self.vms:
            vm.link.route, vm.link.heard_at, vm.launches = b"route", self.now, {1: "w0"}
        self.lost: list[str] = []

    def look(self, for_s: float, *, heard: str) -> None:
        for _ in range(round(for_s * 10)):
            self.now += 0.1
            for vm in self.vms:
                if vm.spec.intent in heard:
                    vm.link.heard_at = self.now
            self.watch.allow_for_pause(self.vms, self.now)
            self.lost += [vm.spec.intent for vm in self.watch.judge(self.vms, self.now)[1]]


@pytest.mark.parametrize("clock_goes_on_s", [AWAY_S, 0.0], ids=["stopped", "asleep"])
def test_vms_that_are_heard_again_after_18_minutes_are_not_lost_however_the_clock_went(
    clock_goes_on_s: float,
) -> None:
    leader = Leader()
    leader.look(20.0, heard="abc")

    leader.now += clock_goes_on_s
    leader.look(10.0, heard="")  # the network takes a while to be there again
    leader.look(30.0, heard="abc")

    assert leader.lost == []
    assert not leader.watch.in_doubt


def test_a_vm_that_ended_meanwhile_is_lost_in_the_usual_time_once_the_others_are_heard() -> None:
    leader = Leader()
    leader.look(20.0, heard="abc")

    leader.now += AWAY_S
    leader.look(LOST_S + 1.0, heard="ab")

    assert set(leader.lost) == {"c"}


def test_if_all_ended_meanwhile_they_are_lost_when_their_agents_would_have_ended_them() -> None:
    """By then the cloud has long said that they are gone."""
    leader = Leader()
    leader.look(20.0, heard="abc")

    leader.now += AWAY_S
    leader.look(200.0, heard="")
    assert leader.lost == []
    leader.look(60.0, heard="")

    assert set(leader.lost) == set("abc")


def test_the_silence_of_processes_proves_nothing_while_most_of_their_vms_are_silent_too() -> None:
    leader = Leader()
    leader.look(20.0, heard="abc")
    leader.look(0.6, heard="a")  # agents may be a little late
    assert not leader.watch.unheard

    leader.look(0.5, heard="a")
    assert leader.watch.unheard
    assert not leader.watch.in_doubt, "too early to call the network broken"

    leader.look(0.1, heard="abc")
    assert not leader.watch.unheard


def test_one_silent_vm_casts_no_doubt() -> None:
    leader = Leader()
    leader.look(20.0, heard="abc")
    leader.look(LOST_S - 1.0, heard="ab")
    assert not leader.watch.unheard


def test_vms_without_processes_cast_no_doubt_on_those_of_others() -> None:
    leader = Leader()
    leader.vms[1].launches = leader.vms[2].launches = {}

    leader.look(2.0, heard="a")

    assert not leader.watch.unheard


def test_the_only_vm_that_falls_silent_is_in_doubt_and_a_process_on_one_that_is_heard_is_not() -> None:
    """So a worker that hangs alone is found by its own silence; whether its VM has ended, the cloud says."""
    leader = Leader()
    del leader.vms[1:]
    leader.look(60.0, heard="a")
    assert not leader.watch.unheard
    assert not leader.watch.in_doubt

    leader.look(1.0, heard="")
    assert leader.watch.unheard
    leader.look(239.0, heard="")
    assert leader.watch.in_doubt
    assert leader.lost == []
    leader.look(30.0, heard="")
    assert leader.lost
    leader.vms[0].launches = {}  # its process has been given up
    leader.look(1.0, heard="")

    assert not leader.watch.in_doubt, "so another VM is rented"


def heard_at(period_s: float, phase_s: float, break_s: tuple[float, float], until_s: float) -> list[float]:
    """When a receiver hears messages that are sent by TCP, which a break of the link holds up.

    What is lost first is sent again after 0.2 s, and then each time after twice as long; what was sent meanwhile waits
    for it.
    """
    begin, end = break_s
    times, again = [], None
    sent = phase_s
    while sent < until_s:
        if again is None and begin <= sent < end:
            wait_s = 0.2
            again = sent + wait_s
            while again < end:
                wait_s *= 2.0
                again += wait_s
        times.append(sent if again is None else max(sent, again))
        sent += period_s
    return times


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.1, 3.0),
    st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=1, max_size=4),
    st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=1, max_size=4),
)
def test_a_short_break_of_the_link_to_all_vms_costs_no_worker(
    break_s: float, agents: list[float], workers: list[float]
) -> None:
    vms = min(len(agents), len(workers))
    broken = 20.0, 20.0 + break_s
    names = [f"w{number}" for number in range(vms)]
    watch, outage, liveness = SilenceWatch(LOST_S, 0.0), NetworkOutage(), Liveness()
    sessions = [AgentSession(AgentSpec(name, "small", "worker", 1, 1)) for name in names]
    until = 40.0
    of_agents = [heard_at(AGENT_BEATS_S, AGENT_BEATS_S * phase, broken, until) for phase in agents[:vms]]
    of_workers = [heard_at(HEARTBEAT_S, HEARTBEAT_S * phase, broken, until) for phase in workers[:vms]]
    looked_at, doubt = 0.0, False
    for tick in range(int(18.0 / 0.05), int(until / 0.05)):
        now = tick * 0.05
        for session, times in zip(sessions, of_agents, strict=True):
            session.link.route, session.launches = b"route", {1: session.spec.intent}
            session.link.heard_at = max((at for at in times if at <= now), default=0.0)
        for name, times in zip(names, of_workers, strict=True):
            if fresh := [at for at in times if now - 0.05 < at <= now]:
                liveness.heard(name, fresh[-1])
                outage.heard(name)
        if now - looked_at >= HEARTBEAT_S:
            looked_at = now
            watch.judge(sessions, now)
            doubt = outage.look(now, in_doubt=watch.in_doubt or watch.unheard, processes=names)
            for name in names if doubt else ():
                liveness.worked(name, now)
        waited_s = max(0.0, now - broken[0])
        lost = liveness.suspects(now, awaited=tuple(names), awaited_for_s=waited_s, step_time_s=0.1)
        assert not lost, f"{lost} {now - broken[0]:.2f} s after a break of {break_s:.2f} s had begun"
    assert not doubt, "a break is over soon"
