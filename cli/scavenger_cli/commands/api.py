"""`api`: where the API is served, its users, and new tokens."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from scavenger.api import users
from scavenger.api.calls import Local, Remote
from scavenger.api.opening import open_source
from scavenger.api.values import plain
from scavenger.domain.access import SERVER, Role, Token
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import clean, when
from scavenger_cli.options import Output, OutputOption, StoreOption
from scavenger_cli.ui import console, render


def info(store_url: StoreOption = None, output: OutputOption = Output.TEXT) -> int:
    """Show where the API is served, who may use it, and what became of notifications."""
    with open_source(store_url) as source:
        found = users.service(source)
    if output.is_json:
        console.emit_json(plain(found))
        return 0
    for server in found.servers:
        where = f"process {server.pid} on {server.host}, version {server.version}, since {when(server.started_at)}"
        console.emit(Text(f"API at {server.address or '(none)'}: {where}", no_wrap=True))
    if not any(one.address for one in found.servers):
        console.emit(Text("No API is served: `scavenger serve` serves it."))
    console.emit(*render.paths((("store", found.store),), indent=0, width=5))
    if found.users:
        grid = render.table(("user", "left"), ("role", "left"), ("tokens", "right"))
        for user in found.users:
            count = sum(token.user == user.name for token in found.tokens)
            grid.add_row(clean(user.name), user.role, str(count))
        console.emit("", grid, "", _tokens("token", found.tokens))
    if found.webhooks:
        grid = render.table(
            ("webhook", "left"),
            ("delivered", "right"),
            ("waiting", "right"),
            ("refused", "right"),
            ("why", "left"),
        )
        for one in found.webhooks:
            grid.add_row(
                clean(one.name), str(one.delivered), str(one.waiting), str(one.refused), clean(one.error)
            )
        console.emit("", grid)
    return 0


def token(
    user: Annotated[
        str | None, typer.Argument(metavar="USER", help="Whose token. Default: this account, as admin.")
    ] = None,
    role: Annotated[
        Role | None, typer.Option(help="Add the user with this role, or change the role.")
    ] = None,
    label: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "",
    days: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=3650, help="How long it is valid. Default: for good."),
    ] = None,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Make a token, which is shown once: only its digest is stored."""
    with open_source(store_url) as source:
        name = user or source.user
        if role is None and user is None and isinstance(source, Local):
            role = "admin"
        if role is not None:
            users.put_user(source, name, role)
        made = users.new_token(source, name, label, days)
    if output.is_json:
        console.emit_json(plain(made))
    else:
        console.emit(Text(made.text, no_wrap=True))
    return 0


def revoke(
    number: Annotated[
        int | None,
        typer.Argument(metavar="TOKEN", min=1, help="Its number, as `scavenger api info` shows it."),
    ] = None,
    sessions: Annotated[
        str | None, typer.Option(metavar="USER", help="End all sessions of this user in browsers.")
    ] = None,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """End a token, with its sessions in browsers and all tokens that were made with it; or a user's sessions."""
    if (number is None) == (sessions is None):
        raise ConfigurationError(
            "name the number of one token (`scavenger api info` lists them), or --sessions USER"
        )
    with open_source(store_url) as source:
        if number is not None:
            ended = users.revoke_token(source, number)
        else:
            ended = users.end_sessions(source, sessions or source.user)
    if output.is_json:
        console.emit_json(plain(ended))
    elif ended.tokens:
        console.emit(_tokens("ended", ended.tokens))
    else:
        console.emit(Text(f"{clean(str(sessions))} has no session in a browser"))
    return 0


def _tokens(title: str, tokens: Sequence[Token]) -> Table:
    grid = render.table(
        (title, "right"), ("user", "left"), ("for", "left"), ("until", "left"), ("made with", "right")
    )
    for one in tokens:
        until = "revoked" if one.expires_at is None else when(one.expires_at)
        made_with = "" if one.parent is None else str(one.parent)
        grid.add_row(str(one.id), clean(one.user), clean(one.label), until, made_with)
    return grid


def login(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="The server. Default: $SCAVENGER_SERVER.")
    ] = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Keep the token of a server for later commands; it is asked for, or read from standard input."""
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
    with Remote(Client(address)) as server:
        who = users.info(server)
    path = keep_token(address.url, address.token)
    if output.is_json:
        known = {"url": address.url, "user": who.user, "role": who.role, "file": str(path)}
        console.emit_json({"schema_version": console.SCHEMA_VERSION, **known})
    else:
        console.emit(Text(f"{who.user} ({who.role}) at {address.url}, kept in {path}", no_wrap=True))
    return 0
