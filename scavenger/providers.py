"""What a package outside imports to add a provider of machines; see docs/providers.md."""

from __future__ import annotations

from scavenger.cloud.adapters import Adapter, Opening
from scavenger.cloud.base import CONSOLE_CHARACTERS, Inspection, Provider
from scavenger.cloud.boot.user_data import user_data
from scavenger.cloud.identity import IdentityVerifier
from scavenger.cloud.stock import CatalogEntry, Extras, MachineType, Stock
from scavenger.domain.capabilities import Capabilities
from scavenger.domain.cost import Price, TrafficPrice
from scavenger.domain.providers import Location, ProviderKind
from scavenger.domain.vm import (
    DEFAULT_SETTINGS,
    LaunchTemplate,
    Quota,
    VmRequest,
    VmSeen,
    VmSettings,
    VmState,
    VmTags,
)
from scavenger.domain.vm_settings import CloudSettings
from scavenger.errors import (
    CloudUnavailableError,
    ConfigurationError,
    CredentialsError,
    GoneError,
    QuotaError,
    StockOutError,
    ThrottledError,
)

__all__ = [
    "CONSOLE_CHARACTERS",
    "DEFAULT_SETTINGS",
    "Adapter",
    "Capabilities",
    "CatalogEntry",
    "CloudSettings",
    "CloudUnavailableError",
    "ConfigurationError",
    "CredentialsError",
    "Extras",
    "GoneError",
    "IdentityVerifier",
    "Inspection",
    "LaunchTemplate",
    "Location",
    "MachineType",
    "Opening",
    "Price",
    "Provider",
    "ProviderKind",
    "Quota",
    "QuotaError",
    "Stock",
    "StockOutError",
    "ThrottledError",
    "TrafficPrice",
    "VmRequest",
    "VmSeen",
    "VmSettings",
    "VmState",
    "VmTags",
    "user_data",
]
