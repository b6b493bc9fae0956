"""A leader that slept, or was stopped, does not hold that time against its VMs; those that are gone are gone."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.elastic.liveness import HEARTBEAT_S, Liveness
from scavenger.elastic.outage import NetworkOutage
from scavenger.train.engines.vm.channel import HEARTBEAT_S as AGENT_BEATS_S
from scavenger.train.engines.vm.silence_watch import LOST_S, SilenceWatch
from scavenger.train.engines.vm.values import AgentSession, AgentSpec

AWAY_S = 18 * 60.0
RECONNECT_S = 10.0
"""Silence of the leader after which an agent connects again."""


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


def test_the_silence_of_processes_proves_nothing_while_all_their_vms_are_silent_too() -> None:
    leader = Leader()
    leader.look(20.0, heard="abc")
    leader.look(0.6, heard="")  # agents may be a little late
    assert not leader.watch.unheard

    leader.look(0.5, heard="")
    assert leader.watch.unheard
    assert not leader.watch.in_doubt, "too early to call the network broken"

    leader.look(0.1, heard="abc")
    assert not leader.watch.unheard


@pytest.mark.parametrize("heard", ["ab", "a"])
def test_vms_that_are_silent_while_another_one_is_heard_cast_no_doubt_and_are_lost(heard: str) -> None:
    leader = Leader()
    leader.look(20.0, heard="abc")
    leader.look(LOST_S - 1.0, heard=heard)
    assert not leader.watch.unheard
    assert not leader.watch.in_doubt
    assert leader.lost == []

    leader.look(2.0, heard=heard)
    assert set(leader.lost) == set("abc") - set(heard)


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
                wait_s = min(120.0, 2.0 * wait_s)
                again += wait_s
        times.append(sent if again is None else max(sent, again))
        sent += period_s
    return times


def assert_a_break_costs_no_worker(
    break_s: float,
    of_agents: list[list[float]],
    of_workers: list[list[float]],
    *,
    begin_s: float,
    until_s: float,
    tick_s: float,
) -> None:
    """Look at agents and workers that are heard at these times, as supervisor and coordinator do."""
    names = [f"w{number}" for number in range(len(of_agents))]
    watch, outage, liveness = SilenceWatch(LOST_S, 0.0), NetworkOutage(), Liveness()
    sessions = [AgentSession(AgentSpec(name, "small", "worker", 1, 1)) for name in names]
    looked_at, supervisor_at, doubt = 0.0, 0.0, False
    for tick in range(int((begin_s - 2.0) / tick_s), int(until_s / tick_s)):
        now = tick * tick_s
        for session, times in zip(sessions, of_agents, strict=True):
            session.link.route, session.launches = b"route", {1: session.spec.intent}
            session.link.heard_at = times[max(0, bisect_right(times, now) - 1)]
        for name, times in zip(names, of_workers, strict=True):
            if bisect_right(times, now) > bisect_right(times, now - tick_s):
                liveness.heard(name, times[bisect_right(times, now) - 1])
                outage.heard(name)
        if now - looked_at >= HEARTBEAT_S:
            looked_at = now
            _, given_up = watch.judge(sessions, now)
            assert not given_up
            doubt = outage.look(now, in_doubt=watch.in_doubt or watch.unheard, processes=names)
            for name in names if doubt else ():
                liveness.worked(name, now)
        supervisor_at = supervisor_at if doubt else now
        if now - supervisor_at > 4 * HEARTBEAT_S:
            continue  # without the supervisor's heartbeats, the coordinator watches nobody
        waited_s = max(0.0, now - begin_s)
        lost = liveness.suspects(now, awaited=tuple(names), awaited_for_s=waited_s, step_time_s=0.1)
        assert not lost, f"{lost} {now - begin_s:.2f} s after a break of {break_s:.2f} s had begun"
    assert not doubt, "a break is over soon"


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
    broken, until_s = (20.0, 20.0 + break_s), 40.0
    assert_a_break_costs_no_worker(
        break_s,
        [heard_at(AGENT_BEATS_S, AGENT_BEATS_S * phase, broken, until_s) for phase in agents[:vms]],
        [heard_at(HEARTBEAT_S, HEARTBEAT_S * phase, broken, until_s) for phase in workers[:vms]],
        begin_s=20.0,
        until_s=until_s,
        tick_s=0.05,
    )


@pytest.mark.parametrize("vms", [1, 2, 3, 8])
@pytest.mark.parametrize("cut_s", [5.0, 25.0, 60.0, 150.0, 230.0])
def test_a_network_that_is_cut_for_less_than_four_minutes_costs_no_vm_and_no_worker(
    vms: int, cut_s: float
) -> None:
    """Agents connect again, within moments of each other; the connections of workers wait for TCP."""
    broken, until_s = (20.0, 20.0 + cut_s), 50.0 + 2.0 * cut_s
    phases = [number / vms for number in range(vms)]
    beats = [heard_at(AGENT_BEATS_S, AGENT_BEATS_S * phase, broken, broken[1]) for phase in phases]
    again_s = [broken[1] + 1.0 + (RECONNECT_S if cut_s > RECONNECT_S else 0.0) * phase for phase in phases]
    assert_a_break_costs_no_worker(
        cut_s,
        [
            [at for at in times if at < broken[0]]
            + [back_s + AGENT_BEATS_S * beat for beat in range(int((until_s - back_s) / AGENT_BEATS_S))]
            for times, back_s in zip(beats, again_s, strict=True)
        ],
        [heard_at(HEARTBEAT_S, HEARTBEAT_S * phase, broken, until_s) for phase in phases],
        begin_s=20.0,
        until_s=until_s,
        tick_s=HEARTBEAT_S,
    )
