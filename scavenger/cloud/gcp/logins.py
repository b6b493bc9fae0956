"""Firewall rules by which SSH reaches the VMs of one owner that may be logged in to, from named networks alone.

Two rules for one network tag: one allows port 22 from these networks, the other denies it from everywhere else, since
the default network has a rule that opens port 22 to the whole internet. Both come before a rule of the default
priority. Firewall rules have no labels: their names are made from the owner, and their descriptions name it.

References:
    https://cloud.google.com/firewall/docs/firewalls
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

from google.api_core.exceptions import Conflict, NotFound
from google.cloud import compute_v1

from scavenger.cloud.gcp.errors import is_missing, of_operation
from scavenger.domain.vm import VmSettings
from scavenger.errors import ConfigurationError, CredentialsError
from scavenger.policy.leaders import ingress_changes

SSH_PORT = "22"
_ALLOW_PRIORITY, _DENY_PRIORITY = 998, 999
"""Below 1000, the priority of a rule that names none; of two rules the one with the lower number holds."""
_POLL_S = 1.0

Told = Callable[[str], AbstractContextManager[None]]


def login_tag(owner: str) -> str:
    """The network tag of an owner's VMs that may be logged in to; also the name of the rule that allows it."""
    return f"scavenger-ssh-{hashlib.sha256(owner.encode()).hexdigest()[:16]}"


def network_of(settings: VmSettings) -> str:
    """The network of VMs as firewall rules name it; empty where only their subnetwork is known.

    Raises:
        ConfigurationError: It belongs to another project, in which no rules are made.
    """
    for place in (settings.network, *settings.subnets):
        if place.startswith("projects/"):
            raise ConfigurationError(
                f"leader: vm makes firewall rules, and network {place} belongs to another project: name a network of "
                "the VMs' own project (gcp.network), or lead the job from a machine that VMs reach"
            )
    if settings.network or not settings.subnets:
        return f"global/networks/{settings.network or 'default'}"
    return ""


class LoginRules:
    """Makes, changes and removes the rules; safe with several commands at once.

    Args:
        project: Its id.
        region: Of the subnetworks.
        client_options: The arguments of every client.
        told: Translates errors; receives what is done.
        limits: The arguments of a call that must be over by a deadline.
        deadline: The deadline of an action that begins now.
        sleep: How to wait, seconds.
    """

    def __init__(
        self,
        project: str,
        region: str,
        client_options: Callable[[], dict[str, Any]],
        *,
        told: Told,
        limits: Callable[[float], dict[str, Any]],
        deadline: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._project, self._region, self._client_options = project, region, client_options
        self._told, self._limits, self._deadline, self._sleep = told, limits, deadline, sleep

    def let_in(self, owner: str, settings: VmSettings) -> None:
        """Let SSH in from `settings.logins_from` alone: other networks, which an earlier call has let in, are removed.

        Raises:
            ConfigurationError: The network does not exist, or belongs to another project.
            CredentialsError, QuotaError, ThrottledError, CloudUnavailableError: As the cloud says.
        """
        deadline = self._deadline()
        with self._told("opening port 22 to this machine"):
            network = network_of(settings) or self._network_of_subnetwork(settings.subnets[0], deadline)
            for rule in _rules(owner, network, settings.logins_from):  # what denies is there first
                self._ensure(rule, deadline)

    def remove(self, owner: str) -> tuple[str, ...]:
        """Remove the rules of an owner; what was removed.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: As the cloud says.
        """
        removed: list[str] = []
        deadline = self._deadline()
        for rule in reversed(_rules(owner, "", ())):
            try:
                with self._told("removing firewall rules"):
                    if self._found(rule.name, deadline) is None:
                        continue
                    self._done(
                        self._firewalls.delete_unary(
                            request=compute_v1.DeleteFirewallRequest(
                                project=self._project, firewall=rule.name
                            ),
                            **self._limits(deadline),
                        ),
                        deadline,
                    )
            except CredentialsError:
                if not removed:  # who may not even look for rules has made none
                    return ()
                raise
            removed.append(f"firewall rule {rule.name}")
        return tuple(removed)

    def _ensure(self, wanted: compute_v1.Firewall, deadline: float) -> None:
        found = self._found(wanted.name, deadline)
        if found is None:
            try:
                self._done(
                    self._firewalls.insert_unary(
                        request=compute_v1.InsertFirewallRequest(
                            project=self._project, firewall_resource=wanted
                        ),
                        **self._limits(deadline),
                    ),
                    deadline,
                )
                return
            except Conflict:  # another command has made it meanwhile
                found = self._found(wanted.name, deadline)
        changes = ingress_changes(found.source_ranges if found is not None else (), wanted.source_ranges)
        if not (changes.add or changes.remove):
            return
        self._done(
            self._firewalls.patch_unary(
                request=compute_v1.PatchFirewallRequest(
                    project=self._project, firewall=wanted.name, firewall_resource=wanted
                ),
                **self._limits(deadline),
            ),
            deadline,
        )

    def _found(self, name: str, deadline: float) -> compute_v1.Firewall | None:
        try:
            return self._firewalls.get(
                request=compute_v1.GetFirewallRequest(project=self._project, firewall=name),
                **self._limits(deadline),
            )
        except NotFound as error:
            if not is_missing(error, "firewalls"):
                raise
            return None

    def _done(self, operation: compute_v1.Operation, deadline: float) -> None:
        """Wait until a change holds.

        Raises:
            ScavengerError: It has failed, or takes longer than the deadline.
        """
        while operation.status != compute_v1.Operation.Status.DONE:
            self._sleep(_POLL_S)
            operation = self._operations.get(
                request=compute_v1.GetGlobalOperationRequest(project=self._project, operation=operation.name),
                **self._limits(deadline),
            )
        if operation.error.errors or int(operation.http_error_status_code or 0) >= 400:
            raise of_operation(
                operation, doing="changing a firewall rule", region=self._region, location=self._project
            )

    def _network_of_subnetwork(self, name: str, deadline: float) -> str:
        client = compute_v1.SubnetworksClient(**self._client_options())
        listed = client.list(
            request=compute_v1.ListSubnetworksRequest(
                project=self._project, region=self._region, filter=f'name = "{name}"'
            ),
            **self._limits(deadline),
        )
        for one in listed:
            return f"global/networks/{one.network.rpartition('/')[2]}"
        raise ConfigurationError(f"{self._region} has no subnetwork {name!r} (gcp.subnetwork)")

    @cached_property
    def _firewalls(self) -> compute_v1.FirewallsClient:
        return compute_v1.FirewallsClient(**self._client_options())

    @cached_property
    def _operations(self) -> compute_v1.GlobalOperationsClient:
        return compute_v1.GlobalOperationsClient(**self._client_options())


def _rules(owner: str, network: str, networks: tuple[str, ...]) -> tuple[compute_v1.Firewall, ...]:
    """The rule that denies, and the one that allows."""
    tag = login_tag(owner)
    common = {"network": network, "direction": "INGRESS", "target_tags": [tag]}
    return (
        compute_v1.Firewall(
            name=f"{tag}-deny",
            description=f"{owner}: nobody else reaches the VM that leads a job",
            priority=_DENY_PRIORITY,
            source_ranges=["0.0.0.0/0"],
            denied=[compute_v1.Denied(I_p_protocol="tcp", ports=[SSH_PORT])],
            **common,
        ),
        compute_v1.Firewall(
            name=tag,
            description=f"{owner}: the command of a job, by SSH",
            priority=_ALLOW_PRIORITY,
            source_ranges=list(networks),
            allowed=[compute_v1.Allowed(I_p_protocol="tcp", ports=[SSH_PORT])],
            **common,
        ),
    )
