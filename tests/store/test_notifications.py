"""Laws of the queue of notifications: each fact once for each webhook, sent by one process at a time, and bounded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from store_values import Clock

from scavenger.domain.notification import Notification, NotificationCount
from scavenger.domain.submission import NewSubmission
from scavenger.store import Store
from scavenger.store import notifications as queue
from scavenger.store.owner import this_process

AT = Clock().at
ONE = Notification("msg_1", "job.done", AT, "Job digits succeeded", {"cost_usd": 0.5, "odd": float("nan")})


def notes(count: int) -> list[Notification]:
    return [replace(ONE, id=f"msg_{n}", at=AT + timedelta(seconds=n)) for n in range(count)]


def test_a_fact_is_queued_once_for_each_webhook(store: Store) -> None:
    assert store.queue_notifications({"team": [ONE], "log": [ONE]}) == 2
    assert store.queue_notifications({"team": [ONE], "log": [ONE]}) == 0
    taken = store.take_notification("team", for_s=60)
    assert taken is not None
    assert taken.notification == replace(ONE, data={"cost_usd": 0.5, "odd": None})
    store.settle_notification(taken.number, "delivered")
    assert store.queue_notifications({"team": [ONE]}) == 0  # what was delivered is remembered


def test_of_many_processes_one_takes_it(url: str) -> None:
    stores = [Store.open(url) for _ in range(4)]
    stores[0].queue_notifications({"team": [ONE]})
    with ThreadPoolExecutor(4) as pool:
        taken = [*pool.map(lambda one: one.take_notification("team", for_s=60), stores)]
    assert len([one for one in taken if one is not None]) == 1
    for one in stores:
        one.close()


def test_one_whose_sender_died_is_due_again_and_so_is_one_that_failed(url: str) -> None:
    clock = Clock()
    with Store.open(url, clock=clock) as store:
        store.queue_notifications({"team": [ONE]})
        first = store.take_notification("team", for_s=60)
        assert first is not None
        clock.at += timedelta(seconds=59)
        assert store.take_notification("team", for_s=60) is None
        clock.at += timedelta(seconds=2)
        second = store.take_notification("team", for_s=60)
        assert second is not None
        assert (second.number, second.attempts) == (first.number, 2)
        store.settle_notification(second.number, "waiting", "no connection", wait_s=10)
        assert store.take_notification("team", for_s=60) is None
        assert store.notification_counts() == (NotificationCount("team", "waiting", 1, "no connection"),)
        clock.at += timedelta(seconds=11)
        assert store.take_notification("team", for_s=60) is not None


def test_the_queue_is_bounded_and_its_oldest_are_not_sent(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "WAITING_MAX", 3)
    with Store.open(url, clock=Clock()) as store:
        store.queue_notifications({"team": notes(5), "log": notes(2)})
        counts = {(one.webhook, one.state): one for one in store.notification_counts()}
        assert counts["team", "waiting"].count == 3
        assert counts["team", "refused"] == NotificationCount("team", "refused", 2, "too many others wait")
        assert counts["log", "waiting"].count == 2
        taken = store.take_notification("team", for_s=60)
        assert taken is not None
        assert taken.notification.id == "msg_2"


def test_what_was_settled_is_deleted_after_a_month_but_not_when_a_webhook_was_first_used(url: str) -> None:
    clock = Clock()
    with Store.open(url, clock=clock) as store:
        store.queue_notifications({"team": [replace(ONE, id="p", kind="ping"), ONE]})
        while (taken := store.take_notification("team", for_s=60)) is not None:
            store.settle_notification(taken.number, "delivered")
        clock.at += queue.KEPT + timedelta(seconds=1)
        store.queue_notifications({"log": [replace(ONE, at=clock.at)]})
        kept = {(one.webhook, one.state, one.count) for one in store.notification_counts()}
        assert kept == {("team", "delivered", 1), ("log", "waiting", 1)}
        assert store.webhooks_since() == {"team": AT}


def test_jobs_that_live_or_ended_lately_are_looked_at(url: str) -> None:
    clock = Clock()
    with Store.open(url, clock=clock) as store:
        old = store.create_job("old", spec={}, job_file="/a/job.yaml")
        store.finish_job(old.id, state="failed", report=None, exit_code=1)
        clock.at += timedelta(days=1)
        since = clock.at
        spec = {"constraints": {"budget": 5.0}}
        live = store.create_job("live", spec=spec, job_file="/b/job.yaml")
        store.update_job(live.id, state="running", cost_usd=4.5)
        me = this_process()
        new = NewSubmission("never", {"constraints": {"budget": "$2"}}, "/c/job.yaml", "ann", me.host, 0)
        never = store.submit(new)
        store.end_submission(None, never.id, "train.py is missing")
        found = {one.name: one for one in store.job_standings(since)}
        assert set(found) == {"live", "never"}
        assert (found["live"].cost_usd, found["live"].budget_usd, found["live"].user) == (4.5, 5.0, me.user)
        told = found["never"]
        assert (told.state, told.error, told.budget_usd, told.user) == (
            "failed",
            "train.py is missing",
            2.0,
            "ann",
        )
        assert [one.name for one in store.job_standings(since, owner=me)] == ["live"]
        assert store.job_standings(since, owner=replace(me, pid=1)) == ()
