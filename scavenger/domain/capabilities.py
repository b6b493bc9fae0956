"""Capabilities of the providers of machines, by which code outside their own packages tells them apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider of machines has.

    Attributes:
        rents: Machines that are paid for by their time; false for this machine, which is there anyway.
        zones: Machines in zones of regions, with disks, networks and addresses of their own, as a cloud's VMs.
        pods: Machines that are pods of a cluster.
        in_image: Pods with the software of their image alone, whose agents an engine starts.
        as_user: Machines where a user without rights runs the agent, in a folder of its own and beside others; else
            root does, on a machine that serves nothing else.
        spot: Machines that the provider may take back, at a lower price.
        leads: Machines that can lead a job in place of the command.
        keeps_disks: A machine that has powered itself off keeps its disk until it is deleted.
        owned: Machines that one has: there are so many and no more, each has a name, and any may be in use.
        metadata: The protocol of the service that tells a machine of its end and proves its identity; empty for none.
    """

    rents: bool = True
    zones: bool = False
    pods: bool = False
    in_image: bool = False
    as_user: bool = False
    spot: bool = True
    leads: bool = False
    keeps_disks: bool = False
    owned: bool = False
    metadata: Literal["", "ec2", "gce"] = ""
