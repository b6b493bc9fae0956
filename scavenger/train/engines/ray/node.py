"""The agent of a node of a Ray cluster: Ray starts it there, and it joins the job as a VM's does."""

from __future__ import annotations

from scavenger.train.engines.vm.agent_process import serve_agent
from scavenger.train.transport.messages.values import ProcessConfiguration

NODE_ROLE = "node"
"""Role of the process that runs it."""


def serve_node(config: ProcessConfiguration) -> int:
    """Serve the job until either ends; its pod is started and ended by KubeRay. See `serve_agent`."""
    return serve_agent(config, "Ray cluster")
