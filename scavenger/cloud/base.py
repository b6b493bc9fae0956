"""The interfaces of clouds: their VMs (`Provider`), and what could be launched (`Inspection`).

The contract of a `Provider`, which `tests/cloud` verifies for every implementation:

- **launch** with a token that was used before returns the VM that the first call made, even if that call was never
  answered; a token whose VM is gone raises `GoneError` and starts nothing. Tags are part of the call.
- **Definite errors**: there is no VM of this token. `StockOutError` and `QuotaError` always say so; `CredentialsError`
  and `ConfigurationError` at the first launch with a token, while at a repeat they may come from the search for the VM,
  and prove nothing. `ThrottledError`: nothing was done. After `CloudUnavailableError` the result is unknown: repeat
  the call with the same token, or list the VMs.
- **Machines to avoid** (`LaunchTemplate.avoided`) get no VM while others could hold it, where the provider can choose
  the machine; elsewhere they change nothing, nor do names that there are not. Of machines
  that one has, those that are drained (`LaunchTemplate.drained`) get none.
- **A launch that waits in a queue** (as of Kueue) raises `CloudUnavailableError` as well, and lists show it `queued`:
  repeating it is what waits, and `StockOutError` says that the provider waits no longer.
- **A token holds in one zone**: another zone needs another token, or a definite error first.
- **describe** finds a VM from the moment that launch returned, in the process that launched it; in other processes it
  may take `visibility_s`. `GoneError` after the cloud has forgotten it.
- **list_owned** may miss VMs younger than `visibility_s`, and may show ones that are gone; it shows no foreign VM.
- **terminate** is done once asked for; asking again, or for one that is gone, is no error. A VM is paid for until it is
  seen `gone`.
- Every call has a time limit and raises `CloudUnavailableError` when it is over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from scavenger.domain.vm import DEFAULT_SETTINGS, OwnedMachine, Quota, VmRequest, VmSeen, VmSettings

CONSOLE_CHARACTERS = 32_000
"""Longest console output that a provider returns: its end, which shows what went wrong last."""


class Provider(Protocol):
    """One account at one cloud, in one region.

    Attributes:
        name: `gcp`, `aws`, `local`, ...
        visibility_s: How long a new VM may be missing from `list_owned`.
        remembers_s: For how long from its launch on `list_owned` shows a VM that was launched, ended or not, once
            `visibility_s` is over; so one that it does not show then never was. 0: it may show none that has ended.
    """

    name: str
    region: str
    visibility_s: float
    remembers_s: float

    def zones(self, vm: str, settings: VmSettings = DEFAULT_SETTINGS) -> tuple[str, ...]:
        """Zones where this VM type is available, in the order to try.

        Args:
            vm: VM type.
            settings: Of the VMs, whose subnets may leave out zones.

        Raises:
            ConfigurationError: If the region has no such type, or the settings no subnet for it.
            CloudError: If the cloud does not answer.
        """

    def launch(self, request: VmRequest) -> VmSeen:
        """Start a VM, once for each token.

        Raises:
            StockOutError, QuotaError, CredentialsError, ThrottledError, GoneError, CloudUnavailableError: See the
                module.
            ConfigurationError: If the cloud does not take the request: no such type, zone or image.
        """

    def describe(self, instance_id: str, zone: str) -> VmSeen:
        """Read the present state of a VM.

        Raises:
            GoneError: If there is no such VM.
            CredentialsError, ThrottledError, CloudUnavailableError: See the module.
        """

    def terminate(self, instance_id: str, zone: str) -> None:
        """End a VM.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: See the module.
        """

    def list_owned(self, owner: str) -> tuple[VmSeen, ...]:
        """List every VM with this owner's tag in all zones of the region, running or recently ended.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: See the module.
        """

    def impaired(self, instance_ids: Collection[str]) -> Mapping[str, str]:
        """Those of these VMs that the cloud's own checks find broken while they count as running: why, by id.

        Empty if the cloud has no such checks.

        Raises:
            GoneError: If one of them is not there.
            CredentialsError, ThrottledError, CloudUnavailableError: See the module.
        """

    def console(self, instance_id: str, zone: str) -> str:
        """Read the end of what a VM has written to its serial console; empty if the cloud has nothing of it yet.

        It may lag by minutes (EC2), and can be read for a while after the VM has ended if the cloud keeps it.

        Raises:
            GoneError: If the cloud keeps no console of such a VM.
            CredentialsError, ThrottledError, CloudUnavailableError: See the module.
        """

    def quotas(self) -> tuple[Quota, ...]:
        """The quotas that limit VMs; empty if the cloud does not report them.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: See the module.
        """

    def spot_prices(self, vms: Collection[str]) -> Mapping[tuple[str, str], float]:
        """Read what spot VMs cost now, US dollars per hour by VM type and zone; empty if the cloud does not tell.

        Args:
            vms: VM types.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: See the module.
        """

    def remove_leftovers(self, owner: str) -> tuple[str, ...]:
        """Remove shared resources (security groups, keys) that no VM of the owner needs; returns what was removed.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: See the module.
        """


class AdmittingProvider(Provider, Protocol):
    """A provider whose VMs can be logged in to, by SSH and from the networks in `VmSettings.logins_from` alone."""

    @property
    def deletes_at(self) -> str:
        """URL below which a VM deletes itself when it powers off; empty where powering off ends it with its disk."""

    def list_leaders(self) -> tuple[VmSeen, ...]:
        """List the VMs that lead jobs, of every owner in the account, running or recently ended.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: See the module.
        """

    def let_in(self, request: VmRequest) -> None:
        """Let SSH reach the VM of this launch from other networks than at its launch, and from these alone.

        Args:
            request: As at the launch, with the other networks in its settings.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: See the module.
        """


@runtime_checkable
class OwnedMachines(Protocol):
    """What a provider of machines that one has (`Capabilities.owned`) tells of them besides."""

    def prices(self, zone: str) -> tuple[float, ...]:
        """What each machine costs in an hour, US dollars; no machine is asked.

        Args:
            zone: Of these alone; empty for all of the region.

        Raises:
            ConfigurationError: There are none.
        """

    def machines(self, zone: str) -> tuple[OwnedMachine, ...]:
        """The machines as they are, without those of which no size is known yet.

        Args:
            zone: As of `prices`.

        Raises:
            CloudError: They cannot be asked at all.
        """


class Inspection(Protocol):
    """Checks whether VMs could be launched in one region of an account, without launching any.

    All raise `CredentialsError`, `ThrottledError` or `CloudUnavailableError` if the cloud does not tell.
    """

    def identity(self) -> str:
        """Whom the credentials belong to."""

    def denied(self, request: VmRequest) -> tuple[str, ...]:
        """The permissions that are missing to launch, watch and end such a VM; empty if there is none."""

    def image(self, request: VmRequest) -> str:
        """The image from which such a VM would boot.

        Raises:
            ConfigurationError: If there is no such image.
        """

    def network(self, request: VmRequest) -> str:
        """The network in which such a VM would be.

        Raises:
            ConfigurationError: If there is none.
        """
