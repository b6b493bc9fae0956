"""Speaks to the REST API of a server: requests that are repeated, errors as in a command, events that go on."""

from scavenger.client.address import ServerAddress, server_address
from scavenger.client.client import Client

__all__ = ["Client", "ServerAddress", "server_address"]
