"""Chooses between the store and a server."""

from __future__ import annotations

from scavenger.api.of_server import ServerSource
from scavenger.api.of_store import StoreSource
from scavenger.client import Client, server_address

Source = StoreSource | ServerSource
"""Jobs, models and prices, as commands show them; close it after use.

Keys of jobs are ids, beginnings of ids, or names. Every method raises `NotFoundError` where there is no such job, model
or operation, `ConfigurationError` where several begin so, and what the store or the server fails with."""


def open_source(store_url: str | None) -> Source:
    """The server that `SCAVENGER_SERVER` names, unless a store is named; else the store.

    Raises:
        ConfigurationError: The variable names no server, or no token is known for it.
    """
    return server_source(store_url) or StoreSource(store_url)


def server_source(store_url: str | None) -> ServerSource | None:
    """The server that `SCAVENGER_SERVER` names; None if it names none, or a store is named.

    Raises:
        ConfigurationError: As of `open_source`.
    """
    address = server_address() if store_url is None else None
    return None if address is None else ServerSource(Client(address))
