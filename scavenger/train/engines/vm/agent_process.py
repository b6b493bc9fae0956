"""An agent that is a process of somebody else's machine: a node of Ray, or of the pool of aggregators."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import Any

from scavenger.train.engines.vm.agent import Agent, Ticket
from scavenger.train.transport.messages.values import ProcessConfiguration

_NOTHING = "true"
"""What it does to restart its machine's time limit, or to end it: that is not its business."""


def serve_agent(config: ProcessConfiguration, place: str, **limits: Any) -> int:
    """Serve the job until either ends.

    Args:
        config: `coordinator`, `server_key`, `name` and `secret_key` are the job's endpoint and key, the name by which
            it knows the agent, and the one-time key.
        place: What is given up when a signal ends it, for the job's log.
        limits: See `Agent`.

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
    agent = Agent(ticket, Path(tempfile.gettempdir()), **limits)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.end(f"its place in the {place} is given up"))
    return agent.run()
