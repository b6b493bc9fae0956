"""What the leader knows of a VM, what it hears of its processes, and the key that the VM joins with."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Literal

import zmq
from zmq.utils import z85

from scavenger.train import vm_messages as m
from scavenger.train.engine_base import Doomed

__all__ = ["Gone", "News", "Role", "Vm", "one_time_keys"]

Role = Literal["worker", "aggregator"]


def one_time_keys(boot_key: bytes, intent: str) -> tuple[str, str]:
    """Public and secret CURVE key (Z85) that one VM joins with; the same for the same intent.

    Args:
        boot_key: The leader's, secret.
        intent: The id of the VM's intent.
    """
    secret = z85.encode(hmac.new(boot_key, intent.encode(), hashlib.sha256).digest())
    return zmq.curve_public(secret).decode(), secret.decode()


@dataclass(frozen=True, slots=True)
class Vm:
    """A VM that is expected or has joined.

    Attributes:
        intent: The id of its intent.
        vm: Its type.
        role: What it may run.
        address: By which other VMs reach it; empty until it has joined.
        threads: Its processors.
        places: How many processes it may run.
        joined: Its agent has been heard, and has not ended.
        heard_s_ago: Since its agent was last heard; infinite if never.
        doomed: What the cloud has told it of its end, with the seconds that are left; None if nothing.
        processes: Names of those that run on it.
    """

    intent: str
    vm: str
    role: Role
    address: str
    threads: int
    places: int
    joined: bool
    heard_s_ago: float
    doomed: Doomed | None
    processes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """A process was lost with its VM."""

    reason: str


News = m.Placed | m.Report | m.Doom | Gone
