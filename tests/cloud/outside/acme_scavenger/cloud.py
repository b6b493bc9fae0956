"""The code of the provider: a cloud in memory."""

from __future__ import annotations

from datetime import date
from typing import Any

from fake import FakeProvider

from acme_scavenger import AcmeSettings
from scavenger.providers import (
    Adapter,
    CatalogEntry,
    ConfigurationError,
    MachineType,
    Opening,
    Price,
    Provider,
    Quota,
    Stock,
    VmRequest,
)

TYPES = {"a4": (4, 16.0, 0.2), "a8": (8, 32.0, 0.4)}


def account_of(opening: Opening) -> str:
    """Whose machines they are."""
    settings = opening.read_settings()
    assert isinstance(settings, AcmeSettings)
    if not settings.account:
        raise ConfigurationError(f"no account is named: set acme.account in {opening.settings_file}")
    return settings.account


def open_acme(opening: Opening) -> Provider:
    """Open the cloud."""
    account_of(opening)
    cloud = FakeProvider("acme", opening.region, types=tuple(TYPES), places=(f"{opening.region}a",))
    cloud.limit(4)
    return cloud


def stock_of(opening: Opening) -> Stock:
    """Machine types and prices."""
    return Stock(
        {
            ("acme", opening.region): {
                name: CatalogEntry(
                    MachineType("acme", name, cpus, gib),
                    opening.region,
                    Price(usd, "acme's list", date(2026, 1, 1)),
                )
                for name, (cpus, gib, usd) in TYPES.items()
            }
        }
    )


class Inspector:
    """Checks for `scavenger doctor`."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def identity(self) -> str:
        return f"the account at {self._provider.region}"

    def denied(self, request: VmRequest) -> tuple[str, ...]:
        return ()

    def image(self, request: VmRequest) -> str:
        return "the newest"

    def network(self, request: VmRequest) -> str:
        return "the only one"


def share(quota: Quota, vm: str, cpus: int, spot: bool) -> float:
    """A quota counts machines."""
    return 1.0


ADAPTER = Adapter(open_acme, Inspector, stock=stock_of, share=share)
