"""Agents of VMs as processes of this machine, forked by one that has imported what an agent needs.

Importing that is most of what an agent costs whose VM lives for seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from scavenger.train.engines.vm import agent as module
from scavenger.train.engines.vm.agent import Agent, read_ticket

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload([__name__])


def fork_agent(ticket: Path, place: Path, *, address: str, identity: str = "") -> ForkServerProcess:
    """Start the agent of a VM.

    Args:
        ticket: Its join file.
        place: A folder for what it keeps.
        address: Of this machine, which has many, by which others reach the VM.
        identity: What proves which VM it is.
    """
    given = (ticket, place, address, identity, dict(os.environ))
    process = _forking.Process(target=_run, args=given, daemon=True)
    process.start()
    return process


def _run(ticket: Path, place: Path, address: str, identity: str, environment: Mapping[str, str]) -> None:
    os.setsid()
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
    os.environ.clear()
    os.environ.update(environment)
    module.address_towards = lambda endpoint: address
    agent = Agent(
        read_ticket(ticket), place, silent_s=60.0, poweroff_s=120.0, identify=lambda public_key: identity
    )
    signal.signal(signal.SIGTERM, lambda *_: agent.end("its VM is being shut down"))
    sys.exit(agent.run())
