"""What every cloud offers to the rest: priced VM types, what their processors are, and VMs themselves.

The contract of a `Provider`, which `tests/cloud` holds every implementation to:

- **launch** with a token that was used before returns the VM that the first call made, also where that call was never
  answered; a token whose VM is gone raises `GoneError` and starts nothing. Tags are part of the call.
- **Definite errors**: there is no VM of this token. `StockOutError` and `QuotaError` always say so; `CredentialsError`
  and `ConfigurationError` at the first launch with a token, while at a repeat they may come from looking for it, and
  prove nothing. `ThrottledError`: nothing was done. After `CloudUnavailableError` nobody knows: ask again with the same
  token, or look.
- **A token holds in one zone**: another zone needs another token, or a definite error first.
- **describe** knows a VM from the moment that launch returned, in the process that launched it; for others it may take
  `visibility_s`. `GoneError` after the cloud has forgotten it.
- **list_owned** may miss VMs younger than `visibility_s`, and may show ones that are gone; it shows no foreign VM.
- **terminate** is done once asked for; asking again, or for one that is gone, is no error. A VM is paid for until it is
  seen `gone`.
- Every call has a time limit and raises `CloudUnavailableError` when it is over.
"""

from __future__ import annotations

from typing import Protocol

from scavenger.domain.configuration import Offer
from scavenger.domain.vm import Quota, VmRequest, VmSeen

__all__ = ["Cloud", "Provider"]


class Cloud(Protocol):
    """A provider in one place."""

    def offers(self, *, workers_max: int) -> tuple[Offer, ...]:
        """Every VM type that may be had, cheapest first.

        Args:
            workers_max: The most workers that the job may have at once, who share what cannot be multiplied.

        Raises:
            ConfigurationError: If a price is unknown or absurd; never 0 in its place.
        """

    def hardware(self) -> str:
        """What a VM type's speed stands on beyond its name, so that a model learned elsewhere is told apart."""


class Provider(Protocol):
    """One account at one cloud, in one region.

    Attributes:
        name: `gcp`, `aws`, `local`, ...
        region: That it is asked in.
        visibility_s: How long a new VM may be missing from `list_owned`.
    """

    name: str
    region: str
    visibility_s: float

    def zones(self, vm: str) -> tuple[str, ...]:
        """Where this VM type can be had, in the order to try.

        Raises:
            ConfigurationError: If there is no such type here.
            CloudError: If the cloud does not say.
        """

    def launch(self, request: VmRequest) -> VmSeen:
        """Start a VM, once for each token.

        Raises:
            StockOutError, QuotaError, CredentialsError, ThrottledError, GoneError, CloudUnavailableError: See the
                module.
            ConfigurationError: If the cloud does not take the request: no such type, zone or image.
        """

    def describe(self, instance_id: str, zone: str) -> VmSeen:
        """One VM as it is now.

        Raises:
            GoneError: If there is none.
            CredentialsError, ThrottledError, CloudUnavailableError: See the module.
        """

    def terminate(self, instance_id: str, zone: str) -> None:
        """End a VM.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: See the module.
        """

    def list_owned(self, owner: str) -> tuple[VmSeen, ...]:
        """Every VM with this owner's tag, in all zones of the region; whether it lives or was seen to end lately.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: See the module.
        """

    def quotas(self) -> tuple[Quota, ...]:
        """The limits that bear on VMs; empty where the cloud does not tell.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: See the module.
        """

    def remove_leftovers(self, owner: str) -> tuple[str, ...]:
        """Remove what was made beside VMs (security groups, keys) once no VM of the owner needs it; what was removed.

        Raises:
            CredentialsError, ThrottledError, CloudUnavailableError: See the module.
        """
