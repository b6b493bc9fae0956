"""A pool in virtual time: what jobs get follows from the shares, whatever decides."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_cases import claims, curves
from properties import examples

from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.policies import Patience
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.simulation import Run, Stages, Workload, simulate
from scavenger.scheduler.jobs.tiresias import Tiresias
from scavenger.scheduler.jobs.values import Claims, Curves, Nodes

EVER = Patience()
LINEAR = Curves(np.arange(65.0)[None])


def workload(*jobs: tuple[float, int, float], change_s: float = 0.0, elastic: bool = False) -> Workload:
    """Jobs of (submitted, slots asked for, seconds with them); elastic ones take from 1 to 64."""
    submitted, asked, lasts = (np.array(column, dtype=float) for column in zip(*jobs, strict=True))
    slots, zeros = asked.astype(np.int64), np.zeros(len(jobs), dtype=np.int64)
    ones, all_of_them = np.ones_like(zeros), np.full_like(zeros, 64)
    return Workload(
        Claims(
            zeros,
            zeros,
            submitted,
            ones if elastic else slots,
            slots,
            all_of_them if elastic else slots,
            zeros,
        ),
        LINEAR,
        work=lasts * asked,
        told=lasts * asked,
        told_log_sd=np.zeros(len(jobs)),
        change_s=np.full(len(jobs), change_s),
    )


def run(jobs: Workload, policy: str, *slots: int, patience: Patience = EVER) -> Run:
    return simulate(jobs, Nodes.of(*slots), Rules(POLICIES[policy], patience))


def test_fifo_serves_in_the_order_of_arrival_and_keeps_slots_for_the_next() -> None:
    jobs = workload((0.0, 3, 10.0), (1.0, 2, 5.0), (2.0, 1, 1.0))

    assert run(jobs, "fifo", 4).completion_s.tolist() == [10.0, 14.0, 9.0]


def test_a_job_that_waited_long_enough_behind_another_no_longer_keeps_slots_idle() -> None:
    jobs = workload((0.0, 3, 10.0), (1.0, 2, 5.0), (2.0, 1, 1.0))
    kept = run(jobs, "fifo", 4, patience=Patience(kept_s=0.5))

    assert kept.completion_s.tolist() == [10.0, 14.0, 1.0]


def test_least_work_left_goes_first_and_stops_what_runs() -> None:
    jobs = workload((0.0, 2, 10.0), (1.0, 2, 2.0))

    assert run(jobs, "srtf", 2).completion_s.tolist() == [12.0, 2.0]
    assert run(jobs, "srtf", 2).changes.tolist() == [3, 1]


def test_a_change_stops_a_job_for_as_long_as_it_says() -> None:
    jobs = workload((0.0, 2, 10.0), (1.0, 2, 2.0), change_s=0.5)
    found = run(jobs, "srtf", 2)

    assert found.completion_s.tolist() == [13.5, 2.5]
    assert found.stopped_s.tolist() == [1.0, 0.5]


def test_a_begin_may_stop_a_job_for_longer_than_a_change() -> None:
    jobs = workload((0.0, 2, 10.0), (3.0, 2, 2.0), change_s=0.5)
    begins = replace(jobs, begin_s=np.array([2.0, 3.0]))
    found = run(begins, "srtf", 2)

    assert found.completion_s.tolist() == [19.0, 5.0]
    assert found.stopped_s.tolist() == [4.0, 3.0]

    shrinks = replace(
        workload((0.0, 4, 10.0), (4.0, 2, 2.0), change_s=0.5, elastic=True), begin_s=np.zeros(2)
    )
    assert run(shrinks, "even", 4).stopped_s.tolist() == [1.0, 0.0]


def test_further_slots_are_idle_until_their_workers_have_started() -> None:
    """A job with 2 of 4 slots that gets the others goes on with 2 for 3 s, and has lost half of these."""
    jobs = workload((0.0, 4, 10.0), (0.0, 2, 2.0), elastic=True)
    at_once = run(jobs, "even", 4)
    later = run(replace(jobs, worker_s=np.full(2, 3.0)), "even", 4)

    assert at_once.changes.tolist() == later.changes.tolist() == [2, 1]
    assert (later.completion_s - at_once.completion_s).tolist() == [1.5, 0.0]


def test_a_job_that_rests_keeps_its_share_until_its_last_change_has_paid_for_itself() -> None:
    """It has 4 slots, then 2 while another is there for 4 s; a change that took 0.1 s has paid for itself after 5 s."""
    jobs = workload((0.0, 4, 20.0), (2.0, 2, 4.0), change_s=0.1, elastic=True)
    begins = replace(jobs, begin_s=np.zeros(2))
    at_once = simulate(begins, Nodes.of(4), Rules(POLICIES["even"]))
    rests = simulate(begins, Nodes.of(4), Rules(POLICIES["even"]), rests=True)

    assert at_once.changes.tolist() == rests.changes.tolist() == [3, 1]
    assert at_once.completion_s[1] == rests.completion_s[1] == 4.0
    assert rests.completion_s[0] - at_once.completion_s[0] == pytest.approx(0.5)  # half of its slots, for 1 s


def test_tiresias_lets_new_jobs_pass_those_that_have_had_their_quantum() -> None:
    jobs = workload((0.0, 1, 100.0), (5.0, 1, 10.0))
    found = simulate(jobs, Nodes.of(1), Rules(Tiresias((20.0, 50.0))))

    assert found.completion_s.tolist() == [110.0, 25.0]


def test_a_starved_job_goes_back_to_the_first_queue() -> None:
    """It has had 20 s; after 2 * 20 s of waiting it is served before those that keep coming."""
    coming = [(20.0 + 10.0 * number, 1, 10.0) for number in range(30)]
    jobs = workload((0.0, 1, 40.0), *coming)

    def lasted(policy: Tiresias) -> float:
        return float(simulate(jobs, Nodes.of(1), Rules(policy)).completion_s[0])

    assert lasted(Tiresias((20.0, 500.0))) == pytest.approx(340.0)
    assert lasted(Tiresias((20.0, 500.0), promote=2.0)) < 120.0


def test_idle_slots_make_an_elastic_job_faster() -> None:
    jobs = workload((0.0, 2, 12.0), elastic=True)

    assert run(jobs, "tiresias", 6).completion_s.tolist() == [12.0]
    assert run(jobs, "elastic-tiresias", 6).completion_s.tolist() == [4.0]


def test_short_jobs_end_late_in_a_long_trace() -> None:
    """A part of a nanosecond is left to them there, and added to the time it is nothing."""
    short = [(1e7 + number, 1, 0.001 + 0.00037 * number) for number in range(20)]
    jobs = workload((0.0, 1, 1.0), *short)
    found = simulate(jobs, Nodes.of(1), Rules(POLICIES["srtf"]), decisions_max=200)

    assert found.completion_s == pytest.approx(jobs.work, abs=1e-6)


@pytest.mark.parametrize("every_s", [0.0, 5.0])
@pytest.mark.parametrize("starved_s", [inf, 100.0])
def test_jobs_that_never_fit_are_told_of(every_s: float, starved_s: float) -> None:
    jobs, rules = workload((0.0, 3, 1.0), (1.0, 1, 7.0)), Rules(POLICIES["even"], Patience(starved_s))
    with pytest.raises(ValueError, match="1 jobs are left that never get a slot"):
        simulate(jobs, Nodes.of(2), rules, every_s=every_s)


def test_a_job_goes_on_with_the_curve_of_its_next_stage() -> None:
    """A second slot doubles the speed in the second half only; a job that begins there is at once in its stage."""
    curves = Curves(np.array([[0.0, 1.0, 1.0], [0.0, 1.0, 2.0]]))
    stages = Stages(np.array([10.0, 0.0]))
    whole = replace(workload((0.0, 1, 20.0), elastic=True), curves=curves, stages=stages)
    half = replace(workload((0.0, 1, 10.0), elastic=True), curves=curves, stages=stages)

    assert run(whole, "throughput", 2).completion_s.tolist() == [15.0]
    assert run(half, "throughput", 2).completion_s.tolist() == [5.0]


@st.composite
def workloads(draw: st.DrawFn, slots: int) -> Workload:
    """Up to twelve jobs that each fit so many slots."""
    found = draw(curves())
    count = draw(st.integers(1, 12))
    wants = draw(claims(count, len(found.rates)))
    order = np.argsort(wants.submitted_s)
    wants = Claims(*(getattr(wants, name)[order] for name in Claims.__dataclass_fields__))
    asked = np.minimum(wants.asked, slots)
    wants = replace(
        wants, least=np.minimum(wants.least, asked), asked=asked, most=np.maximum(asked, wants.most)
    )
    work = np.array(draw(st.lists(st.floats(1.0, 1000.0), min_size=count, max_size=count)))
    return Workload(wants, found, work, work, np.zeros(count), np.full(count, draw(st.floats(0.0, 5.0))))


@examples(25)
@given(workloads(8), st.sampled_from(sorted(POLICIES)))
def test_every_job_does_its_work_and_what_it_held_is_what_it_used(jobs: Workload, policy: str) -> None:
    found = run(jobs, policy, 8, 8)
    claims = jobs.claims

    assert np.all(found.completion_s > 0.0)
    fastest = jobs.curves.rates.max(axis=1)[claims.curve]
    assert np.all(found.completion_s >= jobs.work / fastest + jobs.change_s - 1e-6)
    times, used = found.used
    assert np.sum(np.diff(times) * used[:-1]) == pytest.approx(found.slot_s.sum())
    held_s = found.completion_s - found.waited_s
    assert np.all(found.slot_s >= held_s * claims.least - 1e-6)
    assert np.all(found.slot_s <= held_s * claims.most + 1e-6)
    assert used.max() <= 16


@examples(15)
@given(workloads(8), st.sampled_from(sorted(POLICIES.keys() - {"srtf", "worth"})), st.floats(0.05, 0.95))
def test_stages_that_have_the_same_curve_change_nothing(jobs: Workload, policy: str, part: float) -> None:
    """The turn of a stage is an event: policies that look at the work left may say something else there."""
    curves = len(jobs.curves.rates)
    longest = np.array([jobs.work[jobs.claims.curve == row].max(initial=0.0) for row in range(curves)])
    parted = replace(
        jobs,
        curves=Curves(np.repeat(jobs.curves.rates, 2, axis=0)),
        claims=replace(jobs.claims, curve=2 * jobs.claims.curve),
        stages=Stages(np.column_stack([part * longest, np.zeros(curves)]).ravel()),
    )

    assert run(parted, policy, 8).completion_s == pytest.approx(run(jobs, policy, 8).completion_s, rel=1e-6)


@examples(15)
@given(workloads(8), st.sampled_from(sorted(POLICIES)), st.integers(1, 2), st.floats(20.0, 80.0))
def test_whatever_arrives_after_it_every_job_begins_in_time(
    jobs: Workload, policy: str, coming: int, lasts_s: float
) -> None:
    """One job waits while more urgent ones keep coming, each of which alone could take the whole pool.

    It is served when it has waited for `starved_s`, and each job before it, had it waited as long, has had its turn.
    With `fifo` nobody that runs is stopped for it, so it waits for those before it at most.
    """
    patience = Patience(starved_s=200.0, turn_s=50.0, kept_s=100.0)
    before = len(jobs)
    patient = int(before - 1)
    until = float(jobs.claims.submitted_s[-1])
    stream = until + 1.0 + np.arange(int(1000.0 / lasts_s) * coming) * (lasts_s / coming)
    urgent = int(jobs.claims.priority.max()) + (policy != "fifo")
    more = len(stream)

    def longer(column: np.ndarray, value: float) -> np.ndarray:
        return np.concatenate([column, np.full(more, value)]).astype(column.dtype)

    claims = jobs.claims
    crowd = Workload(
        Claims(
            longer(claims.user, 0),
            longer(claims.priority, urgent),
            np.concatenate([claims.submitted_s, stream]),
            longer(claims.least, 8),
            longer(claims.asked, 8),
            longer(claims.most, 8),
            longer(claims.curve, 0),
        ),
        jobs.curves,
        work=longer(jobs.work, lasts_s * float(jobs.curves.rates[0, 8])),
        told=longer(jobs.told, lasts_s * float(jobs.curves.rates[0, 8])),
        told_log_sd=longer(jobs.told_log_sd, 0.0),
        change_s=longer(jobs.change_s, 0.0),
    )
    began = run(crowd, policy, 8, patience=patience).began_s
    turns = patience.turn_s + float(jobs.change_s.max())
    bound = patience.starved_s + before * turns
    if policy == "fifo":
        lasts = jobs.work / jobs.curves.rates[claims.curve, claims.asked] + jobs.change_s
        bound = patience.starved_s + float(lasts.sum()) + lasts_s
    assert began[patient] - claims.submitted_s[patient] <= bound + 1e-6
