"""Laws of the ledger: money that is spent stays spent, in its month, and what is set aside is set aside once."""

from __future__ import annotations

import math
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from store_values import Clock

from scavenger.domain.cost import Item, LedgerEntry
from scavenger.domain.intent import Fence, FleetSpec, PlacementOption
from scavenger.domain.submission import NewSubmission, Spending, StoredBudgets, Submission, runner_lease
from scavenger.domain.vm import LaunchTemplate
from scavenger.errors import ConfigurationError, LimitReachedError
from scavenger.store import Store
from scavenger.store.operations import KEPT, POOL
from scavenger.store.owner import this_process

HOST, UID = socket.gethostname(), os.getuid()
JOB = NewSubmission("digits", {"version": 1}, "/home/ann/job.yaml", "ann", HOST, UID, reserved_usd=10.0)
ME = this_process().user
WANTED = FleetSpec(
    job_id="",
    provider="aws",
    region="us-east-1",
    slots=(),
    options=(PlacementOption("c5.large", "us-east-1a", False, 0.1),),
    template=LaunchTemplate(3600.0),
    vms_max=1,
    budget_usd=math.inf,
)
MONTH_S = timedelta(days=31).total_seconds()


def started(store: Store, job: Submission) -> Fence:
    """Start a runner, with the job on record."""
    lease = store.start_runner(job.id, "server", store.lease(runner_lease(job.id)))
    assert lease is not None
    if not store.has_job(job.id):
        create(store, job.id)
    return lease.fence


def create(store: Store, job_id: str | None = None, **spec: Any) -> str:
    return store.create_job("digits", spec=spec, job_file="/a.yaml", job_id=job_id).id


def end(store: Store, job_id: str) -> None:
    store.finish_job(job_id, state="failed", report=None, exit_code=1)


class TestSpending:
    def test_counts_what_was_spent_in_the_month_and_what_running_jobs_may_still_cost(self, url: str) -> None:
        clock = Clock()
        with Store.open(url, clock=clock) as store:
            job = store.submit(JOB)
            started(store, job)
            store.update_job(job.id, cost_usd=4.0)
            assert store.spending(clock.at) == Spending({"ann": 4.0}, {"ann": 6.0})

            clock.pass_(MONTH_S)
            store.update_job(job.id, cost_usd=4.0)
            assert store.spending(clock.at) == Spending({}, {"ann": 6.0})
            store.update_job(job.id, cost_usd=7.0)
            assert store.spending(clock.at) == Spending({"ann": 3.0}, {"ann": 3.0})
            assert store.spending(Clock().at).spent == {"ann": 7.0}
            store.update_job(job.id, cost_usd=6.5)  # the cloud's times say less than was counted
            assert store.spending(clock.at).spent == {"ann": 2.5}

    def test_a_job_of_last_month_that_is_resumed_and_withdrawn_keeps_what_it_has_cost_in_this_one(
        self, url: str
    ) -> None:
        clock = Clock()
        with Store.open(url, clock=clock) as store:
            job = store.submit(JOB)
            fence = started(store, job)
            clock.pass_(MONTH_S)
            store.update_job(job.id, cost_usd=6.0)
            end(store, job.id)
            store.end_submission(fence, job.id, "")
            again = store.submit_again(job.id, JOB)

            assert store.spending(clock.at) == Spending({"ann": 6.0}, {}, {job.id: 6.0})
            started(store, again)
            assert store.spending(clock.at) == Spending({"ann": 6.0}, {"ann": 4.0})
            assert store.requeue(Fence(runner_lease(job.id), 2), job.id, "")
            store.cancel(again.id, "withdrawn")
            assert store.spending(clock.at) == Spending({"ann": 6.0}, {})

    def test_deleting_a_record_gives_no_money_back(self, store: Store) -> None:
        since, job = Clock().at, store.submit(JOB)
        fence = started(store, job)
        store.update_job(job.id, cost_usd=6.0)
        end(store, job.id)
        store.end_submission(fence, job.id, "")
        store.delete_jobs([job.id])

        assert store.spending(since) == Spending({"ann": 6.0}, {})

    def test_jobs_of_commands_programs_and_studies_count_for_the_account(self, url: str) -> None:
        clock = Clock()
        with Store.open(url, clock=clock) as store:
            one = create(store, constraints={"budget": "$5"})
            store.update_job(one, cost_usd=2.0)

            assert store.spending(clock.at) == Spending({ME: 2.0}, {ME: 3.0})
            end(store, one)
            assert store.spending(clock.at) == Spending({ME: 2.0}, {})

    def test_a_pool_counts_but_for_what_its_jobs_pay_of_it(self, url: str) -> None:
        clock = Clock()
        with Store.open(url, clock=clock) as store:
            pool, job = create(store, **{POOL: "aws/us-east-1"}), store.submit(JOB)
            started(store, job)
            store.update_job(pool, cost_usd=3.0)
            assert store.spending(clock.at).spent == {ME: 3.0}
            store.note(job.id, "share", 3600.0, 1.0)
            store.update_job(job.id, cost_usd=2.5)  # with its share

            assert store.spending(clock.at).spent == {ME: 2.0, "ann": 2.5}

    def test_each_item_counts_once_where_the_job_was_killed_before_it_counted_that(self, url: str) -> None:
        clock = Clock()
        with Store.open(url, clock=clock) as store:
            job = create(store)
            store.want_vms(replace(WANTED, job_id=job))
            store.update_job(job, cost_usd=2.0)
            for item, usd in (("vms", 5.0), ("disks", 0.5), ("traffic", 0.25)):
                store.note(job, item, 1.0, usd)
            store.note("a-leader", "leader", 0.0, 1.5, name="digits", user="ann")

            assert store.spent_usd(job) == 5.75
            assert store.spending(clock.at).spent == {ME: 5.75, "ann": 1.5}
            assert store.funds_of_study("digits").spent_usd == 7.25

    def test_every_sum_is_that_of_the_items_whatever_they_are_and_in_whatever_month(self, url: str) -> None:
        clock = Clock()

        def told(notes: list[tuple[Item, int, bool]]) -> None:
            clock.pass_(MONTH_S)
            since, name = clock.at, str(clock.at)
            job, last = store.create_job(name, spec={}, job_file="/a.yaml").id, dict[Item, float]()
            for item, usd, later in notes:
                clock.pass_(MONTH_S if later else 1.0)
                store.note(job, item, 2.0 * usd, usd)
                store.note(job, item, 2.0 * usd, usd)
                last[item] = usd

            found = {item: one for item, one in store.entries(job).items() if one.usd}
            assert found == {item: LedgerEntry(2.0 * usd, usd) for item, usd in last.items() if usd}
            assert store.spent_usd(job) == store.funds_of_study(name).spent_usd == sum(last.values())
            paid = min(last.get("pool", 0.0), last.get("share", 0.0))
            assert sum(store.spending(since).spent.values()) == pytest.approx(sum(last.values()) - paid)

        notes = st.tuples(st.sampled_from(get_args(Item)), st.integers(0, 9), st.booleans())
        with Store.open(url, clock=clock) as store:
            examples(20)(given(st.lists(notes, max_size=8))(told))()

    def test_what_a_record_of_another_store_tells_stays_beside_what_the_job_costs_here(
        self, url: str
    ) -> None:
        with Store.open(url, clock=Clock()) as store:
            record = store.job(create(store))
            lost = replace(record, id="another", state="interrupted", ended_at=Clock().at, cost_usd=5.0)
            assert store.recover_job(lost)
            store.note("another", "vms", 60.0, 0.5)
            assert store.spent_usd("another") == 5.5
            store.note("another", "vms", 120.0, 1.0)
            assert store.spent_usd("another") == 6.0


def test_budgets_of_the_store_are_those_recorded_last(store: Store) -> None:
    assert store.budgets() == StoredBudgets()
    store.set_budgets(StoredBudgets(60.0, 20.0))
    assert store.budgets() == StoredBudgets(60.0, 20.0)
    store.set_budgets(StoredBudgets(None, 0.0))
    assert store.budgets() == StoredBudgets(None, 0.0)


class TestClaims:
    def test_of_many_programs_at_once_none_gets_what_another_has(self, store: Store) -> None:
        def claim(number: int) -> float:
            try:
                return store.claim("digits", f"job-{number}", 10.0, 4.0) or 0.0
            except LimitReachedError:
                return 0.0

        with ThreadPoolExecutor(4) as pool:
            granted = sorted(pool.map(claim, range(6)))

        assert granted == [0.0, 0.0, 0.0, 2.0, 4.0, 4.0]

    def test_what_a_trial_has_cost_takes_the_place_of_what_was_set_aside(self, store: Store) -> None:
        job = create(store)
        assert store.claim("digits", job, 10.0, 6.0) == 6.0
        store.update_job(job, cost_usd=2.0)
        funds = store.funds_of_study("digits")
        assert (funds.spent_usd, funds.reserved_usd, funds.claims) == (2.0, 4.0, 1)

        end(store, job)
        store.release(job)
        funds = store.funds_of_study("digits")
        assert (funds.spent_usd, funds.reserved_usd, funds.claims) == (2.0, 0.0, 0)
        store.delete_jobs([job])
        assert store.claim("digits", "other", 10.0, None) == 8.0

    def test_a_program_that_was_killed_leaves_nothing_set_aside(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as dead:
            gone = replace(this_process(), pid=4_194_303)
            dead.setattr("scavenger.store.ledger.this_process", lambda: gone)
            store.claim("digits", "job-1", 10.0, None)

        assert store.funds_of_study("digits").reserved_usd == 0.0

    def test_vms_that_a_study_keeps_count_for_it(self, store: Store) -> None:
        keeper = store.create_job("kept-vms", spec={KEPT: "digits"}, job_file="/study").id
        store.update_job(keeper, cost_usd=1.0)

        assert store.funds_of_study("digits").spent_usd == 1.0
        assert store.funds_of_study("kept-vms").spent_usd == 0.0

    def test_without_a_budget_nothing_limits_a_trial_but_its_own(self, store: Store) -> None:
        assert store.claim("digits", "job-1", None, None) is None
        assert store.claim("digits", "job-2", None, 3.0) == 3.0


class TestReserves:
    """No two budgets set the same dollars aside: what a program holds for a study is not left for other jobs."""

    def test_what_a_program_has_set_aside_for_a_trial_is_not_left_for_the_jobs_of_a_server(
        self, store: Store
    ) -> None:
        since, job = Clock().at, "not-yet-on-record"
        store.claim("digits", job, 10.0, 6.0)
        assert store.spending(since).reserved == {ME: 6.0}

        create(store, job, constraints={"budget": 20.0})  # its job file allows more than the study gives it
        store.update_job(job, cost_usd=2.0)
        assert store.spending(since) == Spending({ME: 2.0}, {ME: 4.0})
        assert store.funds_of_study("digits").reserved_usd == 4.0
        end(store, job)
        store.release(job)
        assert store.spending(since) == Spending({ME: 2.0}, {})


class TestStudiesOfAServer:
    """Jobs of a study that are submitted: its budget is held in the transaction that puts a job into the queue."""

    def test_of_many_programs_at_once_none_gets_what_another_has(self, store: Store) -> None:
        def submit(_: int) -> float:
            try:
                return (
                    store.submit(replace(JOB, reserved_usd=4.0), study_budget_usd=10.0).job.reserved_usd
                    or 0.0
                )
            except LimitReachedError:
                return 0.0

        with ThreadPoolExecutor(4) as pool:
            granted = sorted(pool.map(submit, range(6)))

        assert granted == [0.0, 0.0, 0.0, 2.0, 4.0, 4.0]
        limits = sorted(one.job.spec.get("constraints", {}).get("budget", 4.0) for one in store.submissions())
        assert limits == [2.0, 4.0, 4.0], "the job itself stops there"

    def test_what_a_job_has_cost_takes_the_place_of_what_was_set_aside(self, store: Store) -> None:
        job = store.submit(replace(JOB, reserved_usd=6.0), study_budget_usd=10.0)
        fence = started(store, job)
        store.update_job(job.id, cost_usd=2.0)
        end(store, job.id)
        store.end_submission(fence, job.id, "")

        assert store.submit(replace(JOB, reserved_usd=None), study_budget_usd=10.0).job.reserved_usd == 8.0
        with pytest.raises(
            LimitReachedError, match=r"\$10\.00 is used up: \$2\.00 are spent, and \$8\.00 are set"
        ):
            store.submit(JOB, study_budget_usd=10.0)
        with pytest.raises(LimitReachedError, match="used up"):
            store.submit_again(job.id, replace(JOB, reserved_usd=6.0), study_budget_usd=10.0)
        again = store.submit_again(job.id, replace(JOB, reserved_usd=6.0), study_budget_usd=14.0)
        assert again.job.reserved_usd == 6.0

    def test_is_that_of_one_user(self, store: Store) -> None:
        store.claim("digits", "of-a-program", 10.0, None)
        store.submit(JOB, study_budget_usd=10.0)

        assert store.submit(replace(JOB, user="bob"), study_budget_usd=10.0).job.reserved_usd == 10.0
        with pytest.raises(LimitReachedError):
            store.submit(replace(JOB, user=ME), study_budget_usd=10.0)

    def test_a_request_that_is_sent_again_is_the_first(self, store: Store) -> None:
        job = replace(JOB, reserved_usd=30.0, idempotency_key="once")
        first = store.submit(job, study_budget_usd=10.0)

        assert store.submit(job, study_budget_usd=10.0) == first
        assert first.job.reserved_usd == 10.0
        with pytest.raises(ConfigurationError, match="another job"):
            store.submit(replace(job, spec={"version": 2}), study_budget_usd=10.0)
