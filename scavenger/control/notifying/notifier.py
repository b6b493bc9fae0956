"""Finds what is to be told in the store, and sends it: threads beside a server or a job, which they never hold up.

One thread looks for what has happened and queues it in the store; each webhook has a thread that takes from there. A
process that is killed leaves its notifications in the queue, and the next one sends them: at least once, with an id by
which a receiver leaves out what it has.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from scavenger.control.notifying.requests import (
    NotAllowedError,
    body_of,
    headers_of,
    post,
    secret_of,
    url_of,
)
from scavenger.domain.notification import Notification, QueuedNotification
from scavenger.domain.notify_settings import Webhook
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.policy.admission import QueueLimits, budget_period
from scavenger.policy.notifying import (
    Delivered,
    DeliveryRefused,
    SendAgain,
    after_answer,
    budget_notifications,
    job_notifications,
    ping,
)
from scavenger.store import Store
from scavenger.store.records import Owner

log = logging.getLogger(__name__)

_LOOK_S = 2.0
_AHEAD = timedelta(days=3)
"""How far back the first look goes, for what happened while no process looked."""
_OVERLAP = timedelta(minutes=10)
"""How far back the others go: clocks of machines differ."""
_TAKEN_S = 120.0
"""How long a notification that is being sent is left to its sender; a request and its repetitions take less."""


class Notifier:
    """Tells webhooks what becomes of jobs.

    Args:
        store: Holds the queue.
        webhooks: By name.
        address: URL of the dashboard, for links; empty if there is none.
        owner: Only jobs that this process runs are told of; None: all jobs of the store.
        limits: Have the budgets of a month, of which is told, too; None: they are not.
        look_s: Time between two looks, seconds.
        environ: Holds addresses and secrets that are given by name.
    """

    def __init__(
        self,
        store: Store,
        webhooks: Mapping[str, Webhook],
        *,
        address: str = "",
        owner: Owner | None = None,
        limits: QueueLimits | None = None,
        look_s: float = _LOOK_S,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._store, self._webhooks, self._environ = store, webhooks, environ
        self._address, self._owner, self._limits, self._look_s = address, owner, limits, look_s
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._looked_at: datetime | None = None
        self._warned: dict[str, str] = {}

    def start(self) -> None:
        """Begin to look and to send; nothing is started if there is no webhook."""
        if not self._webhooks:
            return
        self._run("notifications", self.look)
        for name in self._webhooks:
            self._run(f"webhook-{name}", lambda name=name: self._send_due(name))  # type: ignore[misc]

    def stop(self, within_s: float = 0.0) -> None:
        """End the threads; what has happened by now is queued, and sent if that takes no longer than `within_s`."""
        if not self._threads:
            return
        until_s = time.monotonic() + within_s
        try:
            self.look()
            while time.monotonic() < until_s and self._has_unsent():
                time.sleep(0.05)
        except ScavengerError as error:
            log.warning("notifications: %s", error)
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=max(0.5, until_s - time.monotonic()))

    def _has_unsent(self) -> bool:
        """Whether something waits that was not tried yet; what failed is left to a later process."""
        return any(
            one.state == "waiting" and not one.error and one.webhook in self._webhooks
            for one in self._store.notification_counts()
        )

    def _run(self, name: str, work: Callable[[], object]) -> None:
        def keep() -> None:
            while not self._stop.is_set():
                try:
                    work()
                except ScavengerError as error:  # the store is out of service, for instance
                    self._warn(name, str(error))
                except Exception as error:
                    if self._warn(name, f"internal fault, {type(error).__name__}: {error}"):
                        log.exception("the thread %s goes on", name)
                self._stop.wait(self._look_s)

        thread = threading.Thread(target=keep, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    # ---- looking -------------------------------------------------------------------------------------------

    def look(self) -> int:
        """Queue what has happened since the last look; returns how many were queued.

        Raises:
            StoreError: The store cannot be used.
        """
        now = datetime.now(UTC)
        since = self._store.webhooks_since()
        new = [name for name in self._webhooks if name not in since]
        if new:
            self._store.queue_notifications({name: [ping(name, now)] for name in new})
            since |= dict.fromkeys(new, now)
        back = now - _AHEAD if self._looked_at is None else self._looked_at - _OVERLAP
        told = [
            note
            for job in self._store.job_standings(back, owner=self._owner)
            for note in job_notifications(job, now, address=self._address)
        ]
        limits = None if self._limits is None else self._limits.under(self._store.budgets())
        if limits is not None and limits.has_budgets:
            spending = self._store.spending(budget_period(now))
            told += budget_notifications(spending, limits, now, address=self._address)
        self._looked_at = now
        return self._store.queue_notifications(_wanted(told, self._webhooks, since))

    # ---- sending -------------------------------------------------------------------------------------------

    def _send_due(self, name: str) -> None:
        while not self._stop.is_set():
            taken = self._store.take_notification(name, for_s=_TAKEN_S)
            if taken is None:
                return
            self._send(taken)

    def _send(self, taken: QueuedNotification) -> None:
        webhook, one = self._webhooks[taken.webhook], taken.notification
        now = datetime.now(UTC)
        status, reason, retry_after_s = None, "", 0.0
        try:
            url, secret = url_of(webhook, self._environ), secret_of(webhook, self._environ)
            body = body_of(one, webhook)
            answer = post(url, body, headers_of(one.id, body, secret, now), private=webhook.private)
            status, reason, retry_after_s = answer.status, answer.reason, answer.retry_after_s
        except NotAllowedError as error:
            self._refuse(taken, DeliveryRefused(str(error)))
            return
        except ConfigurationError as error:  # it may be set when the next process sends
            reason = str(error)
        follows = after_answer(
            status,
            reason,
            attempts=taken.attempts,
            age=now - one.at,
            retry_after_s=retry_after_s,
            chance=random.random(),  # noqa: S311 - keeps senders apart, no secret
        )
        match follows:
            case Delivered():
                self._store.settle_notification(taken.number, "delivered")
                self._warned.pop(taken.webhook, None)
                log.info("%s: delivered %s: %s", taken.webhook, one.id, one.text)
            case SendAgain(wait_s, why):
                self._store.settle_notification(taken.number, "waiting", why, wait_s=wait_s)
                self._warn(taken.webhook, f"{why}; notifications wait and are sent again")
            case DeliveryRefused():
                self._refuse(taken, follows)

    def _refuse(self, taken: QueuedNotification, refused: DeliveryRefused) -> None:
        self._store.settle_notification(taken.number, "refused", refused.reason)
        log.warning("%s: not delivered: %s (%s)", taken.webhook, taken.notification.text, refused.reason)

    def _warn(self, name: str, text: str) -> bool:
        """Warn of trouble of a webhook or thread, unless it is the same as before; returns whether it is not."""
        new = self._warned.get(name) != text
        if new:
            self._warned[name] = text
            log.warning("%s: %s", name, text)
        return new


def _wanted(
    told: list[Notification], webhooks: Mapping[str, Webhook], since: Mapping[str, datetime]
) -> dict[str, list[Notification]]:
    """What each webhook wants of what has happened since it was first used."""
    return {
        name: [one for one in told if webhook.wants(one.kind) and one.at >= since[name]]
        for name, webhook in webhooks.items()
    }
