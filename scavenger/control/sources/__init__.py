"""Where commands get from what they show, and what they ask for: the store itself, or a server's REST API."""

from scavenger.control.sources.base import Source
from scavenger.control.sources.opening import open_source, server_source

__all__ = ["Source", "open_source", "server_source"]
