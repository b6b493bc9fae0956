"""Laws of the queue: who begins, and that no limit on jobs or money is crossed whatever waits and runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from scavenger.domain.submission import Backlog, NewSubmission, RunnerSeen, RunnerStarts, Spending, Submission
from scavenger.policy.admission import QueueLimits, admit, slotted

AT = datetime(2026, 1, 1, tzinfo=UTC)


def job(number: int, *, running: bool = False, **fields: object) -> Submission:
    new = NewSubmission("j", {}, f"/{number}.yaml", "ann", "here", 0)
    return Submission(
        id=f"job-{number}",
        number=number,
        job=replace(new, **fields),  # type: ignore[arg-type]
        state="running" if running else "queued",
        reason="",
        cancelling=False,
        starts=RunnerStarts(int(running), int(running)),
        installation="",
        submitted_at=AT,
        started_at=AT if running else None,
        ended_at=None,
    )


def backlog(
    *queued: Submission, running: tuple[Submission, ...] = (), spent: dict[str, float] | None = None
) -> Backlog:
    reserved = {one.job.user: 0.0 for one in running}
    for one in running:
        reserved[one.job.user] += one.job.reserved_usd or 0.0
    seen = tuple(RunnerSeen(one, None, None, False, None, 0.0) for one in running)
    return Backlog(queued, seen, {}, Spending(spent or {}, reserved))


def begun(admission: object) -> list[int]:
    return [one.number for one in admission.begin]  # type: ignore[attr-defined]


CLOUD = {"rents": True}


class TestOrder:
    def test_of_one_user_the_first_submitted_begins_first_and_priority_before_that(self) -> None:
        waiting = backlog(job(1, **CLOUD), job(2, **CLOUD), job(3, priority=1, **CLOUD))

        assert begun(admit(waiting, QueueLimits(jobs_max=2))) == [3, 1]

    def test_users_take_turns(self) -> None:
        anns, bobs = [job(n, **CLOUD) for n in (1, 2, 3)], [job(n, user="bob", **CLOUD) for n in (4, 5)]

        assert begun(admit(backlog(*anns, *bobs), QueueLimits(jobs_max=4))) == [1, 4, 2, 5]

    def test_who_waits_for_something_of_its_own_holds_up_nobody(self) -> None:
        waiting = backlog(
            job(1, job_file="/a"),
            job(2, **CLOUD),
            job(3),
            running=(job(0, running=True, job_file="/a", **CLOUD),),
        )
        admission = admit(waiting, QueueLimits())

        assert begun(admission) == [2, 3]
        assert admission.waiting == {"job-1": "job job-0 of the same job file runs"}

    def test_one_that_could_not_begin_rests(self) -> None:
        admission = admit(backlog(job(1), job(2)), QueueLimits(), resting=["job-1"])

        assert begun(admission) == [2]
        assert "tried again soon" in admission.waiting["job-1"]


class TestLimits:
    def test_one_without_slots_of_its_pool_waits_and_rented_ones_begin_beside_it(self) -> None:
        waiting = backlog(job(1), job(2), job(3, **CLOUD))
        admission = admit(waiting, QueueLimits(), slotless={"job-2": "1 job at once may run here"})

        assert begun(admission) == [1, 3]
        assert admission.waiting == {"job-2": "1 job at once may run here"}

    def test_slots_are_for_those_that_lack_nothing_else(self) -> None:
        waiting = backlog(
            job(1, job_file="/a"),
            job(2),
            job(3),
            job(4, **CLOUD),
            running=(job(0, running=True, job_file="/a"),),
        )
        assert slotted(waiting, QueueLimits(), ["job-3"]) == ({"job-1", "job-2", "job-3"}, {"job-2"})
        assert slotted(waiting, QueueLimits(jobs_max=1))[1] == frozenset()

    def test_of_one_user(self) -> None:
        waiting = backlog(job(1, **CLOUD), job(2, **CLOUD), job(3, user="bob", **CLOUD))
        admission = admit(waiting, QueueLimits(user_max=1))

        assert begun(admission) == [1, 3]
        assert admission.waiting == {"job-2": "1 job of ann at once may run"}


class TestBudgets:
    def test_a_job_begins_if_the_most_it_can_cost_is_left(self) -> None:
        limits = QueueLimits(user_budget_usd=10.0)
        running = (job(0, running=True, reserved_usd=4.0, **CLOUD),)
        waiting = [job(1, reserved_usd=5.0, **CLOUD), job(2, reserved_usd=3.0, **CLOUD)]
        admission = admit(backlog(*waiting, running=running, spent={"ann": 2.0}), limits)

        assert begun(admission) == [2]
        assert admission.waiting == {"job-1": "it may cost $5.00, and $4.00 is left of ann's budget, $10.00"}

    def test_a_job_that_goes_on_needs_what_it_may_still_cost_and_no_more(self) -> None:
        waiting = backlog(job(1, reserved_usd=10.0, **CLOUD), job(2, reserved_usd=3.0, **CLOUD))
        spent = {"ann": 6.0}
        waiting = replace(waiting, spending=Spending(spent, {}, {"job-1": 6.0}))

        assert begun(admit(waiting, QueueLimits(user_budget_usd=10.0))) == [1]
        told = admit(waiting, QueueLimits(user_budget_usd=9.5)).waiting["job-1"]
        assert told == "it may cost $4.00, and $3.50 is left of ann's budget, $9.50"

    def test_a_job_without_a_limit_of_its_own_needs_one_under_a_budget(self) -> None:
        admission = admit(backlog(job(1, **CLOUD), job(2)), QueueLimits(budget_usd=9.0))

        assert begun(admission) == [2]  # what rents nothing costs nothing here
        assert admission.waiting["job-1"].startswith("it needs a limit, constraints.budget: $9.00 is left")

    def test_a_budget_of_ones_own_replaces_that_of_everyone(self) -> None:
        limits = QueueLimits(user_budget_usd=1.0, user_budgets_usd={"bob": 9.0})
        waiting = [job(1, reserved_usd=5.0, **CLOUD), job(2, reserved_usd=5.0, user="bob", **CLOUD)]

        assert begun(admit(backlog(*waiting), limits)) == [2]
        assert not QueueLimits().has_budgets


_JOBS = st.lists(
    st.tuples(
        st.booleans(),
        st.sampled_from(["ann", "bob", "eve"]),
        st.booleans(),
        st.none() | st.integers(0, 5).map(float),
        st.integers(-1, 1),
        st.integers(0, 3),
    ),
    max_size=12,
)


@given(
    jobs=_JOBS,
    limits=st.builds(
        QueueLimits,
        jobs_max=st.integers(1, 5),
        user_max=st.none() | st.integers(1, 3),
        budget_usd=st.none() | st.integers(0, 20).map(float),
        user_budget_usd=st.none() | st.integers(0, 9).map(float),
    ),
)
def test_no_limit_is_crossed_and_every_job_begins_or_is_told_why_not(
    jobs: list[tuple[bool, str, bool, float | None, int, int]], limits: QueueLimits
) -> None:
    all_ = [
        job(n, running=runs, user=user, rents=rents, reserved_usd=usd, priority=priority, job_file=f"/{file}")
        for n, (runs, user, rents, usd, priority, file) in enumerate(jobs)
    ]
    queued, running = [[one for one in all_ if (one.state == "running") is runs] for runs in (False, True)]
    admission = admit(backlog(*queued, running=tuple(running)), limits)

    new = list(admission.begin)
    assert {one.id for one in new} | admission.waiting.keys() == {one.id for one in queued}
    assert all(admission.waiting.values())
    assert {one.id for one in new} & admission.waiting.keys() == set()
    if not new:
        return
    now = running + new
    assert len(now) <= limits.jobs_max
    for one in new:
        assert sum(other.job.job_file == one.job.job_file for other in now) == 1
        mine = [other for other in now if other.job.user == one.job.user]
        if limits.user_max is not None:
            assert len(mine) <= limits.user_max
        if one.job.rents or one.job.reserved_usd:
            for budget, those in ((limits.budget_usd, now), (limits.user_budget_usd, mine)):
                if budget is not None:
                    assert one.job.reserved_usd is not None
                    assert sum(other.job.reserved_usd or 0.0 for other in those) <= budget
