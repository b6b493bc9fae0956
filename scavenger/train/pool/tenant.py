"""A tenant of a node on another machine: an agent that joins its job, and runs what the job starts there.

The node's agent starts it as a process of its own, for the manager of the pool, with a one-time key of the job. With
that it joins the job as a rented VM's agent does (`scavenger.train.engines.vm.agent`): it makes keys of its own, and
whatever the job sends from then on, its processes' keys among it, neither the manager nor the node's agent can read.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

from scavenger.train.engines.vm.agent import Agent, Ticket
from scavenger.train.pool.shares import find_shares
from scavenger.train.transport.messages.values import ProcessConfiguration

__all__ = ["JOB_SILENT_S", "serve_tenant"]

JOB_SILENT_S = 240.0
"""Silence of the job after which what it runs here ends, as on its VMs."""
_ENDS_S = JOB_SILENT_S + 10.0
_NOTHING = "true"
"""What a tenant does to restart its machine's time limit, or to end it: that is not its business."""


def serve_tenant(config: ProcessConfiguration) -> int:
    """Hold this process to its share of the machine, and serve the job until either ends.

    Args:
        config: `coordinator`, `server_key`, `name` and `secret_key` are the job's endpoint and key, the name by which
            it knows the tenant, and the one-time key.

    Returns:
        The exit status.
    """
    shares = find_shares()
    shares.sweep()
    shares.group(config.name).enter(os.sched_getaffinity(0), config.memory_bytes)
    ticket = Ticket(
        endpoint=config.coordinator,
        server_key=config.server_key,
        intent=config.name,
        secret=config.secret_key,
        provider="",
        renew=_NOTHING,
        poweroff=_NOTHING,
    )
    agent = Agent(ticket, Path(tempfile.gettempdir()), silent_s=JOB_SILENT_S, poweroff_s=_ENDS_S)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.end("its place in the pool is given up"))
    return agent.run()
