"""The program on a VM: `scavenger-vm JOIN_FILE` joins its coordinator and forwards preemption notices.

`scavenger-vm --has SHA256 [EXTRA ...]` tells by its exit status whether it is the program of that wheel, with what the
extras require; a VM asks it of its image before it installs anything.
"""

from __future__ import annotations

import functools
import http.client
import logging
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from scavenger import logs
from scavenger.cloud.boot.package import is_own
from scavenger.cloud.identity import read_proof
from scavenger.cloud.notices import watch
from scavenger.domain.providers import capabilities_of, find_kind
from scavenger.domain.vm import Notice
from scavenger.errors import CloudError, ConfigurationError
from scavenger.train.engines.vm.agent import Agent, read_ticket

log = logging.getLogger("scavenger.control.provisioning.on_vm")  # this module may be `__main__`

LEAVE_S = 20.0
"""How long the processes of a pod may take to leave their job, of the grace period of 30 s that a pod has."""
_LOOK_S = 0.2
_WORDS = {
    "preemption": "the cloud takes its VM back",
    "rebalance": "the cloud says that its VM is at a higher risk of being taken back",
}


def identify(provider: str, public_key: str) -> str:
    """The cloud's proof of this VM's identity; empty, with a log line, if there is none."""
    try:
        proof = read_proof(provider, public_key)
    except (OSError, http.client.HTTPException, ConfigurationError) as error:
        log.warning("this VM cannot prove its identity: the metadata service does not answer: %s", error)
        return ""
    if not proof:
        log.info("%s gives this VM no proof of its identity", provider)
    return proof


def watch_notices(agent: Agent, provider: str, ended: threading.Event) -> None:
    """Forward the cloud's notices to this VM until the agent has ended, if it has a service that tells of them.

    Run in a thread of its own. Pods are told of their end by a signal with a grace period.
    """
    if find_kind(provider) is None:  # of a package that is installed where the job is led
        agent.warn(f"it will receive no preemption notices: there is no provider {provider!r} on this VM")
        return
    if not capabilities_of(provider).metadata:
        return
    try:
        for notice in watch(provider, stopped=ended.is_set):
            agent.report_preemption(_in_s(notice), _WORDS[notice.kind])
    except (CloudError, ConfigurationError) as error:
        agent.warn(f"it will receive no preemption notices: {error}")


def leave_in_time(agent: Agent, ended: threading.Event, *, within_s: float = LEAVE_S) -> None:
    """End an agent whose pod is to end: what runs there leaves at a step boundary first, if it can within the time."""
    if agent.busy:
        agent.report_preemption(within_s, "its pod is being ended")
    until = time.monotonic() + within_s
    while agent.busy and time.monotonic() < until and not ended.is_set():
        time.sleep(_LOOK_S)
    agent.end("its pod is being ended")


def _in_s(notice: Notice) -> float | None:
    return None if notice.at is None else (notice.at - datetime.now(UTC)).total_seconds()


def _has(sha256: str, extras: Sequence[str]) -> int:
    try:
        return 0 if is_own(sha256, extras) else 1
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def main() -> int:
    """Serve this VM's coordinator until either ends; returns the exit status."""
    if sys.argv[1:2] == ["--has"] and len(sys.argv) > 2:
        return _has(sys.argv[2], sys.argv[3:])
    if len(sys.argv) != 2:
        print("usage: scavenger-vm JOIN_FILE", file=sys.stderr)
        return ConfigurationError.exit_code
    try:
        ticket = read_ticket(Path(sys.argv[1]))
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    try:
        logs.set_up("scavenger-vm", logs.read_settings(), job_id=f"VM {ticket.intent}")
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    log.info("joins %s", ticket.endpoint)
    agent = Agent(
        ticket,
        Path(tempfile.gettempdir()),
        show=log.info,
        identify=functools.partial(identify, ticket.provider),
    )
    ended = threading.Event()

    def asked_to_end(*_: object) -> None:
        machines = capabilities_of(ticket.provider)
        if machines.pods or machines.as_user:
            threading.Thread(target=leave_in_time, args=(agent, ended), daemon=True).start()
        else:
            agent.end("its VM is being shut down")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, asked_to_end)
    watching = threading.Thread(
        target=watch_notices, args=(agent, ticket.provider, ended), name="scavenger-notices", daemon=True
    )
    watching.start()
    try:
        return agent.run()
    finally:
        ended.set()


if __name__ == "__main__":
    sys.exit(main())
