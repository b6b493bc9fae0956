"""Notifications as the settings file wants them; where it wants none, nothing is imported, started or stored."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from scavenger.control.settings import load_settings
from scavenger.domain.notification import Notification
from scavenger.domain.notify_settings import Webhook
from scavenger.errors import ScavengerError
from scavenger.policy.admission import QueueLimits
from scavenger.store import Store
from scavenger.store.owner import this_process

log = logging.getLogger(__name__)


@contextmanager
def notifying(
    store: Store,
    *,
    address: str = "",
    only_mine: bool = False,
    limits: QueueLimits | None = None,
    within_s: float = 0.0,
) -> Iterator[None]:
    """Tell webhooks what becomes of jobs, within the block; nothing that fails is raised.

    Args:
        store: Holds jobs and queue.
        address: URL of the dashboard; empty if there is none.
        only_mine: Whether only the jobs of this process are told of.
        limits: Of a server, whose budgets of a month are told of.
        within_s: Longest wait at the end of the block for what is being sent; the rest stays in the queue.
    """
    if not (webhooks := _webhooks()):
        yield
        return
    from scavenger.control.notifying.notifier import Notifier

    owner = this_process() if only_mine else None
    notifier = Notifier(store, webhooks, address=address, owner=owner, limits=limits)
    notifier.start()
    try:
        yield
    finally:
        notifier.stop(within_s)


def tell(store: Store, notification: Notification) -> None:
    """Queue a notification for the webhooks that want it; nothing that fails is raised.

    It is sent by the next server of this store, or the next command that runs a job.
    """
    webhooks = _webhooks()
    try:
        wanted = {name: [notification] for name, hook in webhooks.items() if hook.wants(notification.kind)}
        store.queue_notifications(wanted)
    except ScavengerError as error:
        log.warning("no notification: %s", error)


def _webhooks() -> Mapping[str, Webhook]:
    try:
        return load_settings().notify
    except ScavengerError as error:
        log.warning("no notifications: %s", error)
        return {}
