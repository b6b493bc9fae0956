"""`api`: where the API is served, its users, and new tokens."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from scavenger.api import open_source
from scavenger.api.service import STATES
from scavenger.domain.access import SERVER, Role
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import clean, when
from scavenger_cli.ui import console, render


def show_info(*, store_url: str | None, as_json: bool) -> int:
    """Print the addresses of live servers, users and their tokens, and webhooks.

    Raises:
        JobFileError: The settings file, which has the webhooks, is invalid.
    """
    with open_source(store_url) as source:
        document = source.service()
    if as_json:
        console.emit_json(document)
        return 0
    servers, users, webhooks = document["servers"], document["users"], document["webhooks"]
    for server in servers:
        since = when(datetime.fromisoformat(server["started_at"]))
        where = f"process {server['pid']} on {server['host']}, version {server['version']}, since {since}"
        console.emit(Text(f"API at {server['address'] or '(none)'}: {where}", no_wrap=True))
    if not any(one["address"] for one in servers):
        console.emit(Text("No API is served: `scavenger serve` serves it."))
    console.emit(*render.paths((("store", document["store"]),), indent=0, width=5))
    if users:
        grid = render.table(("user", "left"), ("role", "left"), ("tokens", "right"))
        for user in users:
            count = sum(token["user"] == user["name"] for token in document["tokens"])
            grid.add_row(clean(user["name"]), user["role"], str(count))
        console.emit("", grid, "", _tokens("token", document["tokens"]))
    if webhooks:
        grid = render.table(
            ("webhook", "left"),
            ("delivered", "right"),
            ("waiting", "right"),
            ("refused", "right"),
            ("why", "left"),
        )
        for one in webhooks:
            grid.add_row(clean(one["name"]), *(str(one[state]) for state in STATES), clean(one["error"]))
        console.emit("", grid)
    return 0


def make_token(
    user: str | None, role: Role | None, *, label: str, days: int | None, store_url: str | None, as_json: bool
) -> int:
    """Make a token and print it.

    Raises:
        NotFoundError: There is no such user, and no role is given.
        ConfigurationError: The name is not one word.
    """
    with open_source(store_url) as source:
        document = source.make_token(user, role, label=label, days=days)
    if as_json:
        console.emit_json(document)
    else:
        console.emit(Text(document["text"], no_wrap=True))
    return 0


def revoke_tokens(number: int | None, sessions: str | None, *, store_url: str | None, as_json: bool) -> int:
    """End a token, or all sessions of a user, and print what ended.

    Raises:
        ConfigurationError: Not one of them is named.
        NotFoundError: There is no such token or user.
    """
    if (number is None) == (sessions is None):
        raise ConfigurationError(
            "name the number of one token (`scavenger api info` lists them), or --sessions USER"
        )
    with open_source(store_url) as source:
        document = source.end_sessions(sessions) if number is None else source.revoke_token(number)
    if as_json:
        console.emit_json(document)
    elif ended := document["tokens"]:
        console.emit(_tokens("ended", ended))
    else:
        console.emit(Text(f"{clean(str(sessions))} has no session in a browser"))
    return 0


def _tokens(title: str, tokens: Sequence[Mapping[str, Any]]) -> Table:
    grid = render.table(
        (title, "right"), ("user", "left"), ("for", "left"), ("until", "left"), ("made with", "right")
    )
    for one in tokens:
        until = one["expires_at"] and when(datetime.fromisoformat(one["expires_at"]))
        made_with = "" if one["parent"] is None else str(one["parent"])
        grid.add_row(str(one["id"]), clean(one["user"]), clean(one["label"]), until or "revoked", made_with)
    return grid


def login(url: str | None, *, as_json: bool) -> int:
    """Ask for the token of a server, check it there, and keep it in a file that only this user can read.

    Raises:
        ConfigurationError: No server is named, it does not know the token, or the file cannot be written.
        TransientError: The server does not answer.
    """
    from scavenger.client import Client, ServerAddress
    from scavenger.client.address import CERTIFICATES, checked_url, keep_token

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
