"""What the leader knows of a VM, what it hears of its processes, and the key that the VM joins with."""

from __future__ import annotations

import hashlib
import hmac
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import zmq
from zmq.utils import z85

from scavenger.train.engines.base import PreemptionNotice
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.channel import Channel

__all__ = [
    "LEADER_SILENT_S",
    "AgentSession",
    "AgentStatus",
    "Alarms",
    "Gone",
    "MisbehavedError",
    "ProcessEvent",
    "Role",
    "one_time_keys",
]

Role = Literal["worker", "aggregator"]

LEADER_SILENT_S = 240.0
"""Silence of the leader after which nothing trains on a VM any more: a network may break for minutes."""

ALARMS_MAX = 20
"""Of what one VM says or does: a person has understood by then, and the rest is left out."""
_KEPT_MAX = 2000
"""Alarms that nobody has looked at; the oldest are dropped."""


class MisbehavedError(Exception):
    """An agent does what no agent of ours does; the message stands behind "it"."""


def one_time_keys(boot_key: bytes, intent: str) -> tuple[str, str]:
    """Public and secret CURVE key (Z85) that one VM joins with; the same for the same intent.

    Args:
        boot_key: The leader's, secret.
        intent: The id of the VM's intent.
    """
    secret = z85.encode(hmac.new(boot_key, intent.encode(), hashlib.sha256).digest())
    return zmq.curve_public(secret).decode(), secret.decode()


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """A VM that is expected or has joined.

    Attributes:
        intent: The id of its intent.
        vm: Its type.
        role: What it may run.
        address: By which other VMs reach it; empty until it has joined.
        threads: Its processors.
        slots: How many processes it may run.
        joined: Its agent has been heard, and has not ended.
        heard_s_ago: Since its agent was last heard; infinite if never.
        preemption: What the cloud has told it of its end, with the seconds that are left; None if nothing.
        processes: Names of those that run on it.
    """

    intent: str
    vm: str
    role: Role
    address: str
    threads: int
    slots: int
    joined: bool
    heard_s_ago: float
    preemption: PreemptionNotice | None
    processes: tuple[str, ...]


@dataclass(slots=True)
class AgentSession:
    """A VM as its leader keeps it; for what `AgentStatus` has too see there.

    Attributes:
        key: The public key that its agent has made, Z85; empty until it was told.
        route: Where the agent was last heard from; empty if never.
        heard_at: When.
        ending: Why the agent ends; empty if it does not.
        shut_out: It has misbehaved: the leader has no more to do with it.
        renewals: How often its time limit was to start anew.
        renewed: The last time that it did.
        launches: Names of processes by their launch.
        unread: How much news of it the engine has not taken.
        unread_bytes: What that holds, bytes.
    """

    intent: str
    vm: str
    role: Role
    threads: int
    slots: int
    key: str = ""
    address: str = ""
    route: bytes = b""
    heard_at: float = float("-inf")
    preemption: m.Doom | None = None
    preempted_at: float = 0.0
    ending: str = ""
    shut_out: bool = False
    renewals: int = 0
    renewed: int = 0
    launches: dict[int, str] = field(default_factory=dict)
    unread: int = 0
    unread_bytes: int = 0
    channel: Channel = field(default_factory=Channel)

    def status_at(self, now: float) -> AgentStatus:
        """What others may know of it."""
        preemption = None
        if self.preemption is not None:
            in_s = self.preemption.in_s
            left_s = None if in_s is None else max(0.0, in_s - (now - self.preempted_at))
            preemption = PreemptionNotice(self.intent, left_s, self.preemption.reason)
        return AgentStatus(
            self.intent,
            self.vm,
            self.role,
            self.address,
            self.threads,
            self.slots,
            joined=bool(self.address or self.shut_out) and not self.ending,
            heard_s_ago=now - self.heard_at,
            preemption=preemption,
            processes=tuple(self.launches.values()),
        )


@dataclass(frozen=True, slots=True)
class Gone:
    """A process was lost with its VM."""

    reason: str


ProcessEvent = m.Placed | m.Report | m.Doom | Gone


class Alarms:
    """What a person should know. What a VM is the cause of is bounded, and shown without control characters.

    Args:
        first: What there is to tell from the start.
    """

    def __init__(self, first: Iterable[str] = ()) -> None:
        self._kept: deque[str] = deque(first, maxlen=_KEPT_MAX)
        self._counts: dict[str, int] = {}

    def add(self, text: str) -> None:
        """Tell what the leader has found out by itself, and tells but once."""
        self._kept.append(printable(text))

    def add_from(self, intent: str, text: str) -> None:
        """Tell what the VM of an intent can bring about as often as it likes; once between two looks."""
        text = printable(text)
        count = self._counts.get(intent, 0)
        if count > ALARMS_MAX or text in self._kept:
            return
        self._counts[intent] = count + 1
        left_out = f"VM {intent}: it has given more than {ALARMS_MAX} alarms, and further ones are left out"
        self._kept.append(text if count < ALARMS_MAX else left_out)

    def forget(self, intent: str) -> None:
        """The VM is gone."""
        self._counts.pop(intent, None)

    def take(self) -> tuple[str, ...]:
        """Those since the last call."""
        told = tuple(self._kept)
        self._kept.clear()
        return told


def printable(text: str) -> str:
    """A text that moves no cursor: other than printable characters become question marks."""
    return "".join(character if character.isprintable() else "?" for character in text)
