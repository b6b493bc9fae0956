"""The code of each provider, by its kind: how it is opened, and what of prices and quotas only it knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from scavenger.cloud.base import Inspection, Provider
from scavenger.cloud.identity import IdentityVerifier
from scavenger.cloud.stock import Stock
from scavenger.domain.providers import find_kind, kinds
from scavenger.domain.vm import Quota
from scavenger.domain.vm_settings import CloudSettings
from scavenger.errors import ConfigurationError, NotSupportedError


@dataclass(frozen=True, slots=True)
class Opening:
    """What a provider is opened with.

    Attributes:
        region: As in `infra`.
        environment: Environment variables.
        read_settings: Reads the provider's settings, with those of the job over them. It raises `JobFileError` for a
            faulty settings file, which must not keep machines from being ended: call it for what is needed then only.
        settings_file: Path of that file, for messages.
    """

    region: str
    environment: Mapping[str, str]
    read_settings: Callable[[], CloudSettings]
    settings_file: str


def _no_share(quota: Quota, vm: str, cpus: int, spot: bool) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Adapter:
    """The code of a provider. Importing it must be light: client libraries are imported when functions are called.

    Attributes:
        open: Opens the provider; raises `ConfigurationError` or `CredentialsError`.
        inspect: Makes the checks of `scavenger doctor --infra` from the provider; None if there are none.
        verify: Opens the verifier of machines' identities; returns None if they have no proof of it.
        stock: Tells the machine types and prices of the region; None if they are in the catalogue of this package.
        share: Tells how much of a quota one VM takes: of a type, with so many vCPUs, spot or not; 0 for none of it.
    """

    open: Callable[[Opening], Provider]
    inspect: Callable[[Any], Inspection] | None = None
    verify: Callable[[Opening], IdentityVerifier | None] = lambda opening: None
    stock: Callable[[Opening], Stock] | None = None
    share: Callable[[Quota, str, int, bool], float] = _no_share


def adapter_of(name: str) -> Adapter:
    """The code of a provider.

    Raises:
        NotSupportedError: If there is none of that name, or a library that it needs is not installed.
        ConfigurationError: If it cannot be loaded.
    """
    kind = find_kind(name)
    if kind is None or not kind.adapter:
        known = ", ".join(kind.name for kind in kinds() if kind.adapter)
        raise NotSupportedError(f"cloud {name!r} is not supported; supported are {known}")
    module, _, attribute = kind.adapter.partition(":")
    try:
        adapter = getattr(import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise NotSupportedError(f"{name} needs {error.name}, which is not installed") from error
    if not isinstance(adapter, Adapter):
        raise ConfigurationError(f"the provider {name} has no Adapter at {kind.adapter}")
    return adapter
