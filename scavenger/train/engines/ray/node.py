"""The agent of a node of a Ray cluster: Ray starts it there, and it joins the job as a VM's does."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

from scavenger.train.engines.vm.agent import Agent, Ticket
from scavenger.train.transport.messages.values import ProcessConfiguration

__all__ = ["NODE_ROLE", "serve_node"]

NODE_ROLE = "node"
"""Role of the process that runs it."""
_NOTHING = "true"
"""What it does to restart its pod's time limit, or to end it: pods are started and ended by KubeRay."""


def serve_node(config: ProcessConfiguration) -> int:
    """Serve the job until either ends.

    Args:
        config: `coordinator`, `server_key`, `name` and `secret_key` are the job's endpoint and key, the name by which
            it knows the node, and the one-time key.

    Returns:
        The exit status.
    """
    ticket = Ticket(
        endpoint=config.coordinator,
        server_key=config.server_key,
        intent=config.name,
        secret=config.secret_key,
        provider="",
        renew=_NOTHING,
        poweroff=_NOTHING,
    )
    agent = Agent(ticket, Path(tempfile.gettempdir()))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.end("its place in the Ray cluster is given up"))
    return agent.run()
