"""A tenant of a node on another machine: an agent that joins its job, and runs what the job starts there.

The node's agent starts it as a process of its own, for the manager of the pool, with a one-time key of the job. With
that it joins the job as a rented VM's agent does (`scavenger.train.engines.vm.agent`): it makes keys of its own, and
whatever the job sends from then on, its processes' keys among it, neither the manager nor the node's agent can read.
"""

from __future__ import annotations

import os

from scavenger.train.engines.vm.agent_process import serve_agent
from scavenger.train.pool.shares import find_shares
from scavenger.train.transport.messages.values import ProcessConfiguration

JOB_SILENT_S = 240.0
"""Silence of the job after which what it runs here ends, as on its VMs."""
_ENDS_S = JOB_SILENT_S + 10.0


def serve_tenant(config: ProcessConfiguration) -> int:
    """Hold this process to its share of the machine, and serve the job until either ends.

    Args:
        config: See `serve_agent`; and `memory_bytes`, the share of memory.

    Returns:
        The exit status.
    """
    shares = find_shares()
    shares.sweep()
    shares.group(config.name).enter(os.sched_getaffinity(0), config.memory_bytes)
    return serve_agent(config, "pool", silent_s=JOB_SILENT_S, poweroff_s=_ENDS_S)
