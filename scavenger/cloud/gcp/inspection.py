"""Checks a Google Cloud project before a job needs it; see `scavenger.cloud.base.Inspection`.

`projects.testIamPermissions` of the Resource Manager tells which of the listed permissions the caller has in the
project. It has no client in the library of Compute Engine, so it is called by its address [1]_.

References:
    .. [1] https://cloud.google.com/resource-manager/reference/rest/v1/projects/testIamPermissions
"""

from __future__ import annotations

from typing import Any

from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from google.cloud import compute_v1
from requests.exceptions import RequestException

from scavenger.cloud.gcp.errors import translated_errors
from scavenger.cloud.gcp.provider import GcpProvider
from scavenger.cloud.gcp.vm import instance_of
from scavenger.domain.vm import VmRequest
from scavenger.errors import CloudUnavailableError, ConfigurationError, CredentialsError

PERMISSIONS = (
    "compute.disks.create",
    "compute.disks.delete",
    "compute.disks.list",
    "compute.disks.setLabels",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.getSerialPortOutput",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.machineTypes.get",
    "compute.regions.get",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
    "compute.zoneOperations.get",
    "compute.zoneOperations.list",
    "compute.zones.list",
)
"""What running a job needs in the project."""

LEADER_PERMISSIONS = (
    "compute.firewalls.create",
    "compute.firewalls.delete",
    "compute.firewalls.get",
    "compute.firewalls.update",
    "compute.globalOperations.get",
    "compute.instances.setTags",
    "compute.networks.updatePolicy",
)
"""What a leader's VM needs besides, for the firewall rule that lets its command in."""

_RESOURCE_MANAGER = "https://cloudresourcemanager.googleapis.com"
_ANSWER_MAX_S = 15.0


class GcpInspection:
    """See `Inspection`.

    Args:
        provider: Has the project, its settings and the credentials.
    """

    def __init__(self, provider: GcpProvider) -> None:
        self._provider = provider

    def identity(self) -> str:
        with translated_errors(
            "looking for credentials", region=self._provider.region, location="this machine"
        ):
            credentials = self._provider.client_options["credentials"]
        account = getattr(credentials, "service_account_email", "") or type(credentials).__name__
        return f"{account}, project {self._provider.project}"

    def denied(self, request: VmRequest) -> tuple[str, ...]:
        """See `Inspection.denied`: by `testIamPermissions`."""
        needed = [*PERMISSIONS, *(LEADER_PERMISSIONS if request.template.settings.logins_from else ())]
        path = f"/v1/projects/{self._provider.project}:testIamPermissions"
        granted = set(self._post(path, {"permissions": needed}).get("permissions", ()))
        return tuple(one for one in needed if one not in granted)

    def image(self, request: VmRequest) -> str:
        (disk,) = instance_of(request, self._provider.settings).disks
        name = str(disk.initialize_params.source_image)
        parts = name.partition("projects/")[2].split("/")
        if len(parts) < 4 or parts[1:3] != ["global", "images"]:
            raise ConfigurationError(
                f"{name!r} is no image; one is such as projects/P/global/images/family/F"
            )
        images = compute_v1.ImagesClient(**self._provider.client_options)
        with self._told(f"looking for image {name}"):
            if parts[3] == "family":
                asked = compute_v1.GetFromFamilyImageRequest(project=parts[0], family=parts[-1])
                found = images.get_from_family(request=asked, timeout=_ANSWER_MAX_S, retry=None)
            else:
                one = compute_v1.GetImageRequest(project=parts[0], image=parts[-1])
                found = images.get(request=one, timeout=_ANSWER_MAX_S, retry=None)
        return str(found.name)

    def network(self, request: VmRequest) -> str:
        (interface,) = instance_of(request, self._provider.settings).network_interfaces
        network = str(interface.network).rpartition("/")[2]
        # a shared network belongs to another project, which its full name begins with
        place = str(interface.subnetwork or interface.network).split("/")
        project = place[1] if place[0] == "projects" else self._provider.project
        subnetworks = compute_v1.SubnetworksClient(**self._provider.client_options)
        with self._told("looking for subnetworks"):
            listed = subnetworks.list(
                request=compute_v1.ListSubnetworksRequest(project=project, region=self._provider.region),
                timeout=_ANSWER_MAX_S,
                retry=None,
            )
            found = [one for one in listed if network in ("", one.network.rpartition("/")[2])]
        wanted = str(interface.subnetwork).rpartition("/")[2]
        names = [one.name for one in found]
        if not names or (wanted and wanted not in names):
            raise ConfigurationError(
                f"network {network!r} of project {project} has no subnetwork "
                f"{f'{wanted!r} ' if wanted else ''}in {self._provider.region}"
            )
        outside = "with" if interface.access_configs else "without"
        return f"{network}, subnetwork {wanted or names[0]}, {outside} public addresses"

    def _told(self, doing: str) -> Any:
        region = self._provider.region
        return translated_errors(doing, region=region, location=region, refused=ConfigurationError)

    def _post(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        """Ask the Resource Manager, or what stands in for it in tests."""
        session = AuthorizedSession(self._provider.client_options["credentials"])  # type: ignore[no-untyped-call]
        base = self._provider.endpoint or _RESOURCE_MANAGER
        try:
            answer = session.post(f"{base}{path}", json=document, timeout=_ANSWER_MAX_S)
            told = answer.json()
        except GoogleAuthError as error:
            raise CredentialsError(f"no valid credentials of Google Cloud: {error}") from error
        except (RequestException, ValueError) as error:
            raise CloudUnavailableError(
                f"the Resource Manager of Google Cloud does not answer: {error}"
            ) from error
        if answer.status_code == 200:
            return dict(told)
        words = str(told.get("error", {}).get("message", answer.reason))[:200]
        if answer.status_code in (401, 403):
            raise CredentialsError(f"the permissions cannot be read: {words}")
        raise CloudUnavailableError(f"the permissions cannot be read: {words}")
