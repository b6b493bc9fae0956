"""The service as a whole, as `scavenger api info` and the server show it: servers, users, and webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scavenger.api.values import SCHEMA_VERSION, plain
from scavenger.domain.notification import NOTIFICATION_KINDS, NotificationCount, NotificationState
from scavenger.version import __version__

if TYPE_CHECKING:
    from scavenger.domain.notify_settings import Webhook
    from scavenger.domain.submission import ServerRecord
    from scavenger.store import Store

STATES: tuple[NotificationState, ...] = ("delivered", "waiting", "refused")


def service_document(store: Store, webhooks: Mapping[str, Webhook]) -> dict[str, Any]:
    """Live servers, users with their tokens, and what became of notifications."""
    queues: dict[str, dict[NotificationState, NotificationCount]] = {name: {} for name in webhooks}
    for one in store.notification_counts():
        queues.get(one.webhook, {})[one.state] = one
    return {
        "schema_version": SCHEMA_VERSION,
        "version": __version__,
        "store": store.name,
        "servers": [_server(one) for one in store.servers()],
        "users": plain(store.users()),
        "tokens": plain(store.tokens()),
        "webhooks": [_webhook(name, one, queues[name]) for name, one in webhooks.items()],
    }


def _webhook(
    name: str, webhook: Webhook, queue: Mapping[NotificationState, NotificationCount]
) -> dict[str, Any]:
    troubles = [queue[state].error for state in ("waiting", "refused") if state in queue]
    return {
        "name": name,
        "format": webhook.format,
        "events": webhook.events or list(NOTIFICATION_KINDS),
        "signed": bool(webhook.secret_from),
        **{state: queue[state].count if state in queue else 0 for state in STATES},
        "error": next(filter(None, troubles), ""),
    }


def _server(one: ServerRecord) -> dict[str, Any]:
    return {
        "address": one.address,
        "host": one.host,
        "pid": one.pid,
        "user": one.user,
        "version": one.version,
        "background": one.background,
        "started_at": one.started_at.isoformat(),
    }
