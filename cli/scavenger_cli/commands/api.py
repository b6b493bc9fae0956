"""`api`: where the API is served, its users, and new tokens."""

from __future__ import annotations

from datetime import timedelta

from rich.text import Text

from scavenger.control.documents.plain import plain
from scavenger.domain.access import Role
from scavenger.store import Store
from scavenger.store.owner import this_process
from scavenger_cli.ui import console, render

__all__ = ["make_token", "show_info"]


def show_info(*, store_url: str | None, as_json: bool) -> int:
    """Print the addresses of live servers, users and their tokens."""
    with Store.open(store_url) as store:
        servers, users, tokens = store.servers(), store.users(), store.tokens()
    if as_json:
        shown = [{"address": one.address, "host": one.host, "pid": one.pid} for one in servers]
        document = {"schema_version": console.SCHEMA_VERSION, "servers": shown}
        console.emit_json({**document, "users": plain(users), "tokens": plain(tokens)})
        return 0
    addresses = [f"{one.address} (process {one.pid} on {one.host})" for one in servers if one.address]
    for address in addresses:
        console.emit(Text(f"API at {address}", no_wrap=True))
    if not addresses:
        console.emit(Text("No API is served: `scavenger serve` serves it."))
    if users:
        grid = render.table(("user", "left"), ("role", "left"), ("tokens", "right"))
        for user in users:
            grid.add_row(user.name, user.role, str(sum(token.user == user.name for token in tokens)))
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
