"""Where the agents of a record's VMs join, and what a VM that waits is made of, by what is on record."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from scavenger.control.provisioning.booting import read_boot
from scavenger.domain.intent import FleetSpec, Intent
from scavenger.domain.vm import LaunchTemplate, VmPackage
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.agent_server import one_time_keys


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where agents join a job, or what keeps VMs between jobs.

    Attributes:
        boot_key: Secret from which their one-time keys are derived.
    """

    endpoint: str
    server_key: str
    boot_key: bytes

    def order(self, name: str) -> m.Move:
        """The order to join it under a name."""
        return m.Move(self.endpoint, self.server_key, name, one_time_keys(self.boot_key, name)[1])


def endpoint_of(spec: FleetSpec) -> Endpoint | None:
    """Where the VMs of a record join; None if it wants none any more."""
    boot = read_boot(spec.template.user_data)
    if boot is None or not spec.boot_key:
        return None
    return Endpoint(boot.endpoint, boot.server_key, bytes.fromhex(spec.boot_key))


def made_of(template: LaunchTemplate, package: VmPackage | None) -> Hashable:
    """What has to be alike for a job to take a VM of another: image, disk, settings and package.

    A template's user data and the machines that it avoids, or that are drained, are the job's own; how long a VM may
    run is compared by itself.
    """
    return replace(template, user_data="", run_max_s=1.0, avoided=(), drained=()), package


def made_as(intent: Intent) -> Hashable:
    """What a VM on record is made of."""
    template = intent.request.template
    boot = read_boot(template.user_data)
    return made_of(template, None if boot is None else boot.package)
