"""Cyclic execution in virtual time: jobs that are punctual, late, or flood a node, and laws that hold for all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from benchmarks.pools.serving import CyclicExecution, Execute, Request
from benchmarks.pools.timetable import CyclicJob, Timetable, plan_timetable
from scavenger.scheduler.cycles import execution_cycle, steps_in_cycle

_ROUNDING = 1e-6


@dataclass
class _Run:
    """What a node executed, from when to when, and when each request arrived first."""

    executed: dict[Request, tuple[Execute, float, float]] = field(default_factory=dict)
    arrived_s: dict[Request, float] = field(default_factory=dict)


def run(timetable: Timetable, arrivals: Iterable[tuple[float, Request]]) -> _Run:
    """Give a node these requests, each once or more often; checks that no core is idle while a request waits."""
    node, found = CyclicExecution(timetable), _Run()
    events: list[tuple[float, int, int, Request | None]] = [
        (at_s, 1, number, request) for number, (at_s, request) in enumerate(arrivals)
    ]
    heapify(events)
    running: dict[int, Request] = {}
    while events:
        at_s, kind, core, request = heappop(events)
        if kind == 0:
            del running[core]
            started = node.finished(at_s, core)
        else:
            assert request is not None
            found.arrived_s.setdefault(request, at_s)
            started = node.arrived(at_s, request)
        for one in started:
            assert one.core not in running
            assert one.request not in found.executed, "executed twice"
            running[one.core] = one.request
            end_s = at_s + one.execution_s
            found.executed[one.request] = one, at_s, end_s
            heappush(events, (end_s, 0, one.core, None))
        waiting = found.arrived_s.keys() - found.executed.keys()
        assert not waiting or len(running) == timetable.cores, "a core is idle while a request waits"
    assert found.executed.keys() == found.arrived_s.keys()
    return found


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Timetable, dict[str, float]]:
    """Jobs whose requests fit into the cycle of a node, with slots at any phase."""
    cores = draw(st.integers(1, 3))
    share = draw(st.floats(0.1, 1.0))
    jobs, steps = [], draw(st.lists(st.floats(0.5, 4.0), min_size=1, max_size=5))
    for index, step_s in enumerate(steps):
        buckets = draw(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=5))
        scale = step_s * share * cores / len(steps) / sum(buckets)
        executions = {i: min(scale * size, step_s / len(buckets)) for i, size in enumerate(buckets)}
        jobs.append(CyclicJob(f"j{index}", step_s, executions, draw(st.floats(0.0, 4.0))))
    cycle_s = execution_cycle(steps, cycle_max=draw(st.sampled_from([1.0, 4.0])))
    return plan_timetable(jobs, cycle_s, cores), {job.name: job.step_time_s for job in jobs}


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Timetable, list[tuple[float, Request]]]:
    """Requests at any time: steps of a job may come all at once, and some requests come twice."""
    timetable, _ = draw(nodes())
    arrivals = []
    for job, bucket in timetable.executions_s:
        gaps = draw(st.lists(st.floats(0.0, 5.0), max_size=6))
        at_s = 0.0
        for step, gap_s in enumerate(gaps):
            at_s += gap_s
            arrivals.append((at_s, Request(job, bucket, step)))
            if draw(st.integers(0, 9)) == 0:
                arrivals.append((at_s + draw(st.floats(0.0, 9.0)), Request(job, bucket, step)))
    return timetable, sorted(arrivals, key=lambda one: one[0])


@given(nodes())
def test_slots_of_a_core_do_not_overlap_and_hold_what_they_are_for(
    node: tuple[Timetable, dict[str, float]],
) -> None:
    timetable, step_times = node
    cycle_s = timetable.cycle_s
    for core in range(timetable.cores):
        taken = []
        for (job, of), slots in timetable.slots.items():
            if of != core:
                continue
            mine = [
                s
                for key, s in timetable.executions_s.items()
                if key[0] == job and timetable.core_of[key] == core
            ]
            steps = steps_in_cycle(cycle_s, step_times[job])
            held_s = sum(length for _, length in slots.pieces_s)
            assert steps * sum(mine) <= held_s + _ROUNDING
            assert held_s <= steps * len(mine) * max(mine) + _ROUNDING
            assert list(slots.pieces_s) == sorted(slots.pieces_s)
            assert all(0.0 <= begin < cycle_s for begin, _ in slots.pieces_s)
            taken += [(begin, begin + length) for begin, length in slots.pieces_s]
        taken.sort()
        following = [*taken[1:], *((begin + cycle_s, end) for begin, end in taken[:1])]
        assert all(end <= begin + _ROUNDING for (_, end), (begin, _) in zip(taken, following, strict=True))


@given(nodes())
@examples(20)
def test_a_job_that_uses_its_slots_makes_all_of_its_steps(node: tuple[Timetable, dict[str, float]]) -> None:
    """Each step's requests come half a step after the one before was due."""
    timetable, step_times = node
    for job in step_times.keys() - timetable.without_promise:
        buckets = [bucket for name, bucket in timetable.executions_s if name == job]
        by_core = [
            [timetable.executions_s[job, b] for b in buckets if timetable.core_of[job, b] == core]
            for core in range(timetable.cores)
        ]
        if any(len(mine) * max(mine) > step_times[job] / 2 for mine in by_core if mine):
            continue  # its slots begin before its gradients are whole
        steps = steps_in_cycle(timetable.cycle_s, step_times[job])
        arrivals: list[tuple[float, Request]] = []
        at_s, ends_s = 0.0, []
        for step in range(steps + 2):
            arrivals += [(at_s, Request(job, bucket, step)) for bucket in buckets]
            executed = run(timetable, arrivals).executed
            ends_s.append(max(executed[Request(job, bucket, step)][0].due_s for bucket in buckets))
            at_s = ends_s[-1] + 0.5 * step_times[job]
        assert ends_s[-1] <= ends_s[1] + timetable.cycle_s + _ROUNDING


@given(schedules())
@examples(80)
def test_each_request_is_executed_once_and_soon_after_it_is_due(
    schedule: tuple[Timetable, list[tuple[float, Request]]],
) -> None:
    timetable, arrivals = schedule
    found = run(timetable, arrivals)

    bucket_s = max(timetable.executions_s.values())
    for request, (instruction, begin_s, end_s) in found.executed.items():
        assert begin_s >= found.arrived_s[request] - _ROUNDING
        core = timetable.core_of[request.job, request.bucket]
        if (request.job, core) in timetable.slots:
            assert end_s <= instruction.due_s + bucket_s + _ROUNDING


@given(schedules())
def test_when_a_request_is_due_depends_on_its_job_alone(
    schedule: tuple[Timetable, list[tuple[float, Request]]],
) -> None:
    timetable, arrivals = schedule
    together = run(timetable, arrivals)

    for job in {request.job for _, request in arrivals}:
        alone = run(timetable, [one for one in arrivals if one[1].job == job])
        for request, (instruction, _, _) in alone.executed.items():
            assert together.executed[request][0].due_s == pytest.approx(instruction.due_s)


def steady(job: str, buckets: int, at_s: float, every_s: float, steps: int) -> list[tuple[float, Request]]:
    """A job that sends all of its buckets at once, step by step, without waiting for a result."""
    return [
        (at_s + step * every_s, Request(job, bucket, step))
        for step in range(steps)
        for bucket in range(buckets)
    ]


def two_jobs(slow_executions_s: dict[int, float]) -> Timetable:
    punctual = CyclicJob("punctual", 1.0, {0: 0.1, 1: 0.1}, due_s=0.2)
    return plan_timetable([punctual, CyclicJob("other", 1.0, slow_executions_s, due_s=0.9)], 1.0, 1)


@pytest.mark.parametrize("slots_of", [{"punctual", "other"}, {"punctual"}])
def test_a_flood_costs_a_punctual_job_one_bucket_at_most(slots_of: set[str]) -> None:
    timetable = two_jobs({0: 0.3, 1: 0.3})
    slots = {key: value for key, value in timetable.slots.items() if key[0] in slots_of}
    timetable = replace(timetable, slots=slots)
    flood = steady("other", 2, 0.0, 0.01, 200)
    punctual = steady("punctual", 2, 10.0, 1.0, 20)

    found = run(timetable, sorted(flood + punctual, key=lambda one: one[0]))

    late_s = [
        end_s - (10.0 + request.step + 0.2)
        for request, (_, _, end_s) in found.executed.items()
        if request.job == "punctual" and request.bucket == 1
    ]
    assert max(late_s) <= 0.3 + _ROUNDING
    assert max(late_s) > 0.0, "the flood was not felt: this shows nothing"


def test_without_slots_a_flood_stops_everyone() -> None:
    timetable = two_jobs({0: 0.3, 1: 0.3}).without_slots()
    flood = steady("other", 2, 0.0, 0.01, 200)
    punctual = steady("punctual", 2, 10.0, 1.0, 20)

    found = run(timetable, sorted(flood + punctual, key=lambda one: one[0]))

    first = found.executed[Request("punctual", 1, 0)]
    assert first[2] > 100.0


def test_a_late_request_uses_spare_time() -> None:
    timetable = two_jobs({0: 0.1})
    late = Request("punctual", 0, 0)

    found = run(timetable, [(0.3, late)])

    instruction, begin_s, _ = found.executed[late]
    assert begin_s == 0.3
    assert not instruction.in_slot
    assert instruction.due_s == pytest.approx(1.1)


def test_a_late_request_waits_where_the_node_has_no_spare_time() -> None:
    timetable = two_jobs({0: 0.4, 1: 0.4})
    late, others = Request("punctual", 1, 0), [Request("other", bucket, 0) for bucket in (0, 1)]

    found = run(timetable, [(0.1, others[0]), (0.1, others[1]), (0.3, late)])

    assert found.executed[others[1]][1] == pytest.approx(0.5)
    assert found.executed[late][1] == pytest.approx(0.9)


def test_the_spare_time_goes_to_whom_it_is_due_first() -> None:
    timetable = two_jobs({0: 0.1, 1: 0.1})
    node = CyclicExecution(timetable)
    (running,) = node.arrived(0.25, Request("other", 0, 0))
    for step in (1, 2, 3):
        assert node.arrived(0.26, Request("other", 0, step)) == ()
    assert node.arrived(0.3, Request("punctual", 0, 0)) == ()

    order = [node.finished(0.35 + 0.1 * i, running.core)[0].request for i in range(4)]
    # the flood's first request has time left in its next slot, the others only in later ones
    assert order[:2] == [Request("other", 0, 1), Request("punctual", 0, 0)]


def test_a_job_without_slots_is_not_starved() -> None:
    """Two steps of 2 and 3 s in a cycle of 3 s leave no even slots, but time enough."""
    jobs = [CyclicJob(f"j{i}", step_s, {0: 0.3 * step_s}) for i, step_s in enumerate((2.0, 2.1, 3.0))]
    timetable = plan_timetable(jobs, 3.0, 1)
    slots = {key: value for key, value in timetable.slots.items() if key[0] != "j2"}
    timetable = replace(timetable, slots=slots)
    arrivals = [
        one for i, every_s in enumerate((3.0, 3.0, 3.0)) for one in steady(f"j{i}", 1, 0.0, every_s, 50)
    ]

    found = run(timetable, sorted(arrivals, key=lambda one: one[0]))

    waited = [begin_s - found.arrived_s[r] for r, (_, begin_s, _) in found.executed.items() if r.job == "j2"]
    assert max(waited) <= 3.0 + 2 * 0.63


def test_another_timetable_keeps_what_waits() -> None:
    timetable = two_jobs({0: 0.1})
    node = CyclicExecution(timetable)
    node.arrived(0.0, Request("other", 0, 0))
    node.arrived(0.0, Request("punctual", 0, 0))
    node.arrived(0.0, Request("punctual", 1, 0))

    assert node.planned(0.05, timetable.without_slots()) == ()
    assert node.arrived(0.06, Request("punctual", 1, 0)) == ()
    assert [one.request for one in node.finished(0.1, 0)] == [Request("punctual", 0, 0)]
    assert [one.request for one in node.finished(0.2, 0)] == [Request("punctual", 1, 0)]
    assert node.finished(0.3, 0) == ()


def test_what_a_job_left_behind_is_dropped() -> None:
    node = CyclicExecution(two_jobs({0: 0.1}))
    node.arrived(0.0, Request("other", 0, 0))
    node.arrived(0.0, Request("punctual", 0, 0))

    node.left("punctual")

    assert node.finished(0.1, 0) == ()
    assert node.arrived(0.2, Request("punctual", 0, 0))  # a job of this name begins again


def test_refuses_what_cannot_be() -> None:
    node = CyclicExecution(two_jobs({0: 0.1}))
    with pytest.raises(ValueError, match="core 0 executes nothing"):
        node.finished(0.0, 0)
    with pytest.raises(ValueError, match="2 cores for 1"):
        node.planned(0.0, Timetable(1.0, 2))
    with pytest.raises(KeyError):
        node.arrived(0.0, Request("nobody", 0, 0))
    with pytest.raises(ValueError, match="no step of job slow"):
        plan_timetable([CyclicJob("slow", 2.0, {0: 0.1})], 1.0, 1)
    with pytest.raises(ValueError, match="a core"):
        plan_timetable([], 1.0, 0)
