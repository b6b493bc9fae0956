"""Chooses between the store and a server."""

from __future__ import annotations

from scavenger.api.calls import Local, Remote, Source
from scavenger.client import Client, server_address


def open_source(store_url: str | None) -> Source:
    """The server that `SCAVENGER_SERVER` names, unless a store is named; else the store.

    Raises:
        ConfigurationError: The variable names no server, or no token is known for it.
    """
    return server_source(store_url) or Local(store_url)


def server_source(store_url: str | None) -> Remote | None:
    """The server that `SCAVENGER_SERVER` names; None if it names none, or a store is named.

    Raises:
        ConfigurationError: As of `open_source`.
    """
    address = server_address() if store_url is None else None
    return None if address is None else Remote(Client(address))
