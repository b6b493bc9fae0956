"""Capabilities of the providers of machines, by which code outside their own packages tells them apart."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider of machines has.

    Attributes:
        rents: Machines that are paid for by their time; false for this machine, which is there anyway.
        zones: Machines in zones of regions, with disks, networks and addresses of their own, as a cloud's VMs.
        pods: Machines that are pods of a cluster.
        in_image: Pods with the software of their image alone, whose agents an engine starts.
        leads: Machines that can lead a job in place of the command.
        keeps_disks: A machine that has powered itself off keeps its disk until it is deleted.
    """

    rents: bool = True
    zones: bool = False
    pods: bool = False
    in_image: bool = False
    leads: bool = False
    keeps_disks: bool = False


LOCAL = "local"
CAPABILITIES: dict[str, Capabilities] = {
    LOCAL: Capabilities(rents=False),
    "gcp": Capabilities(zones=True, leads=True, keeps_disks=True),
    "aws": Capabilities(zones=True, leads=True),
    "kubernetes": Capabilities(pods=True, leads=True),
    "kuberay": Capabilities(pods=True, in_image=True),
}


def capabilities_of(provider: str) -> Capabilities:
    """The capabilities of a provider; of one that is not known, those of a cloud with VMs."""
    return CAPABILITIES.get(provider, Capabilities(zones=True))
