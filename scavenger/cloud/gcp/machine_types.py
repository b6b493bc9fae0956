"""The machine types of a region of Compute Engine, as its API names them."""

from __future__ import annotations

from google.cloud import compute_v1

from scavenger.cloud.gcp.errors import translated_errors
from scavenger.cloud.gcp.provider import GcpProvider
from scavenger.errors import ConfigurationError

_PAGE = 500  # the most that Compute Engine gives at once
_CALL_TIMEOUT_S = 30.0
_GONE = ("OBSOLETE", "DELETED")


def machine_types(provider: GcpProvider) -> tuple[compute_v1.MachineType, ...]:
    """Every type that some zone of the provider's region has, by name.

    Raises:
        ConfigurationError: If there is no such region, or the project may not be asked.
        CredentialsError, ThrottledError, CloudUnavailableError: As the names say.
    """
    with translated_errors(
        "listing machine types", region=provider.region, location=provider.region, refused=ConfigurationError
    ):
        zones = compute_v1.ZonesClient(**provider.client_options).list(
            request=compute_v1.ListZonesRequest(project=provider.project, max_results=_PAGE),
            timeout=_CALL_TIMEOUT_S,
            retry=None,
        )
        names = [zone.name for zone in zones if zone.region.rpartition("/")[2] == provider.region]
        if not names:
            raise ConfigurationError(f"Google Cloud has no region {provider.region!r}")
        client = compute_v1.MachineTypesClient(**provider.client_options)
        found: dict[str, compute_v1.MachineType] = {}
        for zone in sorted(names):
            kinds = client.list(
                request=compute_v1.ListMachineTypesRequest(
                    project=provider.project, zone=zone, max_results=_PAGE
                ),
                timeout=_CALL_TIMEOUT_S,
                retry=None,
            )
            for kind in kinds:
                if kind.deprecated.state not in _GONE:
                    found.setdefault(kind.name, kind)
    return tuple(found[name] for name in sorted(found))
