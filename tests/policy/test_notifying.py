"""What is told of a job, once each; and when a notification is sent again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from scavenger.domain.notification import NotifiedJob
from scavenger.domain.submission import Spending
from scavenger.policy.admission import QueueLimits
from scavenger.policy.notifying import (
    GIVE_UP,
    Delivered,
    DeliveryRefused,
    SendAgain,
    after_answer,
    budget_notifications,
    job_notifications,
    leftover_notification,
)

AT = datetime(2026, 11, 23, 8, tzinfo=UTC)
JOB = NotifiedJob("c75918c9-fb0c", "digits", "ann", "running", "", 1.0, 5.0, 1, AT, None)


def ended(state: str, **changes: object) -> NotifiedJob:
    return replace(JOB, state=state, ended_at=AT + timedelta(minutes=2), **changes)  # type: ignore[arg-type]


class TestWhatIsTold:
    @pytest.mark.parametrize(
        ("state", "kind"),
        [
            ("succeeded", "job.done"),
            ("target_missed", "job.done"),
            ("failed", "job.failed"),
            ("stopped", "job.stopped"),
            ("interrupted", "job.stopped"),
        ],
    )
    def test_the_end_of_a_job(self, state: str, kind: str) -> None:
        [one] = job_notifications(ended(state), AT, address="http://127.0.0.1:8765")
        assert one.kind == kind
        assert one.text == f"Job digits (c75918c9) {state.replace('_', ' ')} after 2 min for $1.00 of $5.00"
        assert (one.data["state"], one.data["cost_usd"], one.data["user"]) == (state, 1.0, "ann")
        assert one.data["url"] == "http://127.0.0.1:8765/jobs/c75918c9-fb0c"

    def test_a_job_that_its_pool_pauses_was_not_stopped(self) -> None:
        [one] = job_notifications(ended("interrupted", error="paused by pool gpu"), AT)
        assert one.kind == "job.paused"
        assert one.text == "Job digits (c75918c9) paused after 2 min for $1.00 of $5.00: paused by pool gpu"

    def test_nothing_of_a_plan_or_of_a_job_that_runs(self) -> None:
        assert job_notifications(JOB, AT) == job_notifications(ended("planned"), AT) == ()

    @pytest.mark.parametrize(("cost", "told"), [(3.99, 0), (4.0, 1), (9.0, 1)])
    def test_a_budget_of_which_80_percent_are_spent(self, cost: float, told: int) -> None:
        found = job_notifications(replace(JOB, cost_usd=cost), AT)
        assert [one.kind for one in found] == ["job.budget"] * told
        assert job_notifications(replace(JOB, cost_usd=cost, budget_usd=None), AT) == ()

    def test_a_months_budget_of_which_80_percent_are_spent(self) -> None:
        limits = QueueLimits(budget_usd=100.0, user_budget_usd=50.0, user_budgets_usd={"bob": 20.0})
        spending = Spending({"ann": 39.9, "bob": 16.0}, {"ann": 50.0})
        [one] = budget_notifications(spending, limits, AT, address="http://127.0.0.1:8765")
        assert (one.kind, one.data["user"], one.data["month"]) == ("user.budget", "bob", "2026-11")
        assert one.text == "the jobs of bob have spent 80 % of this month's budget: $16.00 of $20.00"
        assert one.data["url"] == "http://127.0.0.1:8765/budgets"

        more = budget_notifications(Spending({"ann": 65.0, "bob": 16.0}, {}), limits, AT + timedelta(days=1))
        assert [one.kind for one in more] == ["user.budget", "user.budget", "service.budget"]
        assert more[1].id == one.id  # told once a month
        [later] = budget_notifications(spending, limits, AT + timedelta(days=30))
        assert later.id != one.id

    def test_no_budget_and_a_budget_of_nothing(self) -> None:
        spending = Spending({"ann": 39.9, "bob": 0.0}, {})
        assert budget_notifications(spending, QueueLimits(), AT) == ()
        [one] = budget_notifications(spending, QueueLimits(user_budget_usd=0.0), AT)
        assert one.text == "the jobs of ann have spent more than this month's budget: $39.90 of $0"

    def test_the_same_fact_has_the_same_id_whenever_it_is_found(self) -> None:
        later = AT + timedelta(hours=1)
        spent = replace(JOB, cost_usd=4.5)
        [first], [second] = (
            job_notifications(spent, AT),
            job_notifications(replace(spent, cost_usd=4.6), later),
        )
        assert first.id == second.id
        [end], [again] = (job_notifications(ended("failed", attempts=count), AT) for count in (1, 2))
        assert end.id != again.id  # it was resumed, and failed once more

    def test_no_secret_and_one_short_line(self) -> None:
        error = "no access\nwith password=hunter2hunter2 " + 1000 * "x"
        [one] = job_notifications(ended("failed", error=error), AT)
        assert "hunter2" not in one.text + one.data["error"]
        assert "\n" not in one.text
        assert len(one.text) <= 500

    def test_the_same_leftover_vms_are_told_once_in_any_order(self) -> None:
        vms = [
            {"provider": "aws", "region": "us-east-1", "instance_id": f"i-{number}", "vm": "m5", "reason": ""}
            for number in range(7)
        ]
        one, other = leftover_notification(vms, AT), leftover_notification(vms[::-1], AT)
        assert one.id == other.id != leftover_notification(vms[:6], AT).id
        assert one.text.startswith("no job uses 7 VMs that cost money: aws/us-east-1/i-0, ")
        assert one.text.endswith("and 2 more")


def answered(status: int | None, **changes: object) -> Delivered | SendAgain | DeliveryRefused:
    values = {"attempts": 1, "age": timedelta(0), "retry_after_s": 0.0, "chance": 0.0, **changes}
    return after_answer(status, "no connection", **values)  # type: ignore[arg-type]


class TestAnswers:
    @pytest.mark.parametrize("status", [200, 202, 204])
    def test_what_was_taken_is_delivered(self, status: int) -> None:
        assert answered(status) == Delivered()

    @pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 403, 404, 410, 413])
    def test_what_can_not_succeed_later_is_refused(self, status: int) -> None:
        assert answered(status) == DeliveryRefused(f"the receiver answered {status}")

    @pytest.mark.parametrize("status", [None, 408, 425, 429, 500, 502, 503, 504])
    def test_what_may_succeed_later_is_sent_again(self, status: int | None) -> None:
        assert isinstance(answered(status), SendAgain)

    def test_waits_double_up_to_an_hour_and_a_random_half_of_them_varies(self) -> None:
        waits = [answered(500, attempts=count, chance=1.0).wait_s for count in range(1, 40)]  # type: ignore[union-attr]
        assert waits[:4] == [5.0, 10.0, 20.0, 40.0]
        assert waits[-1] == max(waits) == 3600.0
        assert answered(500).wait_s == 2.5  # type: ignore[union-attr]

    def test_a_receiver_may_ask_for_a_longer_wait(self) -> None:
        assert answered(429, retry_after_s=120.0).wait_s == 120.0  # type: ignore[union-attr]
        assert answered(429, retry_after_s=1e9).wait_s == 3600.0  # type: ignore[union-attr]

    def test_after_three_days_it_is_given_up(self) -> None:
        assert answered(None, age=GIVE_UP, attempts=99) == DeliveryRefused(
            "given up after 99 attempts: no connection"
        )
