"""What commands, programs and browsers ask for, of the store itself or of a server's REST API."""

from scavenger.api.opening import Source, open_source, server_source

__all__ = ["Source", "open_source", "server_source"]
