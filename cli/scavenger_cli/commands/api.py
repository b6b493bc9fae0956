"""`api`: where the API is served, its users, and new tokens."""

from __future__ import annotations

import getpass
import os
import sys
from datetime import timedelta
from typing import Any

from rich.text import Text

from scavenger import __version__
from scavenger.control.documents.plain import plain
from scavenger.control.settings import load_settings
from scavenger.domain.access import Role
from scavenger.domain.notification import NOTIFICATION_KINDS, NotificationCount, NotificationState
from scavenger.domain.submission import ServerRecord
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import when
from scavenger.store import Store
from scavenger.store.owner import this_process
from scavenger_cli.ui import console, render

__all__ = ["login", "make_token", "show_info"]

_STATES: tuple[NotificationState, ...] = ("delivered", "waiting", "refused")


def show_info(*, store_url: str | None, as_json: bool) -> int:
    """Print the addresses of live servers, users and their tokens, and webhooks.

    Raises:
        JobFileError: The settings file, which has the webhooks, is invalid.
    """
    webhooks = load_settings().notify
    with Store.open(store_url) as store:
        servers, users, tokens = store.servers(), store.users(), store.tokens()
        counts, name = store.notification_counts(), store.name
    queues = {webhook: {one.state: one for one in counts if one.webhook == webhook} for webhook in webhooks}
    if as_json:
        hooks = [
            {
                "name": webhook,
                "format": one.format,
                "events": one.events or list(NOTIFICATION_KINDS),
                "signed": bool(one.secret_from),
                **{state: _count(queues[webhook].get(state)) for state in _STATES},
                "error": _trouble(queues[webhook].get("waiting")),
            }
            for webhook, one in webhooks.items()
        ]
        document = {"schema_version": console.SCHEMA_VERSION, "version": __version__, "store": name}
        document["servers"] = [_server(one) for one in servers]
        console.emit_json({**document, "users": plain(users), "tokens": plain(tokens), "webhooks": hooks})
        return 0
    for server in servers:
        where = f"process {server.pid} on {server.host}, version {server.version}, since {when(server.started_at)}"
        console.emit(Text(f"API at {server.address or '(none)'}: {where}", no_wrap=True))
    if not any(one.address for one in servers):
        console.emit(Text("No API is served: `scavenger serve` serves it."))
    console.emit(*render.paths((("store", name),), indent=0, width=5))
    if users:
        grid = render.table(("user", "left"), ("role", "left"), ("tokens", "right"))
        for user in users:
            grid.add_row(user.name, user.role, str(sum(token.user == user.name for token in tokens)))
        console.emit("", grid)
    if webhooks:
        grid = render.table(
            ("webhook", "left"),
            ("delivered", "right"),
            ("waiting", "right"),
            ("refused", "right"),
            ("why", "left"),
        )
        for webhook, found in queues.items():
            numbers = (str(_count(found.get(state))) for state in _STATES)
            grid.add_row(webhook, *numbers, _trouble(found.get("waiting")) or _trouble(found.get("refused")))
        console.emit("", grid)
    return 0


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


def _count(count: NotificationCount | None) -> int:
    return 0 if count is None else count.count


def _trouble(count: NotificationCount | None) -> str:
    return "" if count is None else count.error


def make_token(
    user: str | None, role: Role | None, *, label: str, days: int | None, store_url: str | None, as_json: bool
) -> int:
    """Make a token and print it.

    Raises:
        NotFoundError: There is no such user, and no role is given.
        ConfigurationError: The name is not one word.
    """
    name = user or this_process().user
    wanted: Role | None = role or ("admin" if user is None else None)
    with Store.open(store_url) as store:
        if wanted is not None:
            store.set_user(name, wanted)
        made, text = store.new_token(name, label, lasts=None if days is None else timedelta(days=days))
    if as_json:
        console.emit_json({"schema_version": console.SCHEMA_VERSION, "token": plain(made), "text": text})
    else:
        console.emit(Text(text, no_wrap=True))
    return 0


def login(url: str | None, *, as_json: bool) -> int:
    """Ask for the token of a server, check it there, and keep it in a file that only this user can read.

    Raises:
        ConfigurationError: No server is named, it does not know the token, or the file cannot be written.
        TransientError: The server does not answer.
    """
    from scavenger.client import Client, ServerAddress
    from scavenger.client.address import CERTIFICATES, SERVER, checked_url, keep_token

    named = url or os.environ.get(SERVER, "").strip()
    if not named:
        raise ConfigurationError(
            f"name the server, as `scavenger api login https://HOST:8765`, or set {SERVER}"
        )
    checked = checked_url(named)
    text = getpass.getpass(f"Token for {checked}: ") if console.is_interactive() else sys.stdin.readline()
    address = ServerAddress(checked, text.strip(), os.environ.get(CERTIFICATES) or None)
    with Client(address) as client:
        info = client.info()
    path = keep_token(address.url, address.token)
    if as_json:
        known = {"url": address.url, "user": info["user"], "role": info["role"], "file": str(path)}
        console.emit_json({"schema_version": console.SCHEMA_VERSION, **known})
    else:
        console.emit(Text(f"{info['user']} ({info['role']}) at {address.url}, kept in {path}", no_wrap=True))
    return 0
