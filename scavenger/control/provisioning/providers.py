"""The cloud providers by name. The client library of a provider is loaded when it is opened."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from scavenger.cloud.base import Inspection, Provider
from scavenger.cloud.identity import IdentityVerifier
from scavenger.control.settings import cloud_settings, settings_of, settings_path
from scavenger.domain.infra import CURRENT, Infra
from scavenger.domain.vm_settings import AwsSettings, CloudSettings, GcpSettings, KubernetesSettings
from scavenger.errors import ConfigurationError, NotSupportedError

if TYPE_CHECKING:
    from scavenger.cloud.kubernetes.provider import KubernetesProvider

GCP_PROJECT = "GOOGLE_CLOUD_PROJECT"
"""Environment variable with the project's id, as for Google's own tools."""
POD_OWNER = "SCAVENGER_POD_OWNER"
"""Environment variable of a leader in a cluster: the reference, in JSON, to the object with which its pods end."""


def project_of(settings: CloudSettings | None, environment: Mapping[str, str]) -> str:
    """The id of the Google Cloud project: the environment's, or else that of the settings.

    Raises:
        ConfigurationError: If neither names one.
    """
    if project := environment.get(GCP_PROJECT):
        return project
    # the file is read only where it is needed: a fault in it must not keep VMs from being ended
    settings = settings or cloud_settings("gcp", environment)
    project = settings.project if isinstance(settings, GcpSettings) else ""
    if not project:
        raise ConfigurationError(
            f"no Google Cloud project is named: set {GCP_PROJECT}, or gcp.project in {settings_path(environment)}"
        )
    return project


def _aws(region: str, environment: Mapping[str, str], settings: CloudSettings | None) -> Provider:
    from scavenger.cloud.aws.provider import AwsProvider

    return AwsProvider(region)


def _gcp(region: str, environment: Mapping[str, str], settings: CloudSettings | None) -> Provider:
    from scavenger.cloud.gcp.provider import GcpProvider

    project = project_of(settings, environment)
    # Below the reconciler's time limit for a call; a launch that takes longer is repeated with the same token.
    return GcpProvider(project, region, environment=environment, operation_timeout_s=45.0)


def _kubernetes(
    region: str, environment: Mapping[str, str], settings: CloudSettings | None
) -> KubernetesProvider:
    from scavenger.cloud.kubernetes.pods import PodSettings
    from scavenger.cloud.kubernetes.provider import KubernetesProvider

    settings = settings or cloud_settings("kubernetes", environment)
    assert isinstance(settings, KubernetesSettings)
    owner = environment.get(POD_OWNER)
    pods = PodSettings.of(settings, owner=msgspec.json.decode(owner, type=dict[str, str]) if owner else None)
    return KubernetesProvider("" if region == CURRENT else region, settings=pods, environment=environment)


def _kuberay(region: str, environment: Mapping[str, str], settings: CloudSettings | None) -> Provider:
    from scavenger.cloud.kubernetes.ray_groups import RayGroupProvider

    return RayGroupProvider(region, environment=environment)


PROVIDERS: dict[str, Callable[[str, Mapping[str, str], CloudSettings | None], Provider]] = {
    "aws": _aws,
    "gcp": _gcp,
    "kubernetes": _kubernetes,
    "kuberay": _kuberay,
}
_EXTRAS = {"kuberay": "kubernetes"}
"""Names of optional dependencies that are not those of their provider."""


def _inspect_aws(provider: Any) -> Inspection:
    from scavenger.cloud.aws.inspection import AwsInspection

    return AwsInspection(provider)


def _inspect_gcp(provider: Any) -> Inspection:
    from scavenger.cloud.gcp.inspection import GcpInspection

    return GcpInspection(provider)


INSPECTIONS: dict[str, Callable[[Any], Inspection]] = {"aws": _inspect_aws, "gcp": _inspect_gcp}


def open_provider(
    name: str,
    region: str,
    environment: Mapping[str, str] = os.environ,
    settings: CloudSettings | None = None,
) -> Provider:
    """Open a cloud provider in one region.

    Args:
        environment: Environment variables.
        settings: Those of the job; None to read the settings file for what the environment does not say.

    Raises:
        NotSupportedError: If this version does not support the cloud, or its client library is not installed.
        ConfigurationError: If the region or another setting is invalid.
        CredentialsError: If there are no credentials.
    """
    if name not in PROVIDERS:
        raise NotSupportedError(f"cloud {name!r} is not supported; supported are {', '.join(PROVIDERS)}")
    with _explained(_EXTRAS.get(name, name)):
        return PROVIDERS[name](region, environment, settings)


def cluster_settings(infra: Infra, environment: Mapping[str, str]) -> KubernetesSettings:
    """The settings of a job's pods.

    Raises:
        JobFileError: See `settings_of`.
    """
    settings = settings_of(infra, environment)
    assert isinstance(settings, KubernetesSettings)
    return settings


def open_cluster(
    infra: Infra, environment: Mapping[str, str], settings: KubernetesSettings
) -> KubernetesProvider:
    """Open the Kubernetes cluster of a job, as `open_provider` opens any cloud."""
    with _explained("kubernetes"):
        return _kubernetes(infra.region, environment, settings)


def open_verifier(
    infra: Infra, settings: CloudSettings, environment: Mapping[str, str] = os.environ
) -> IdentityVerifier | None:
    """Open the verifier of the identity of a job's VMs; None if their cloud gives them no proof of it.

    Compute Engine gives one to VMs with a service account only.

    Raises:
        NotSupportedError: If a library is not installed.
        ConfigurationError: If the key of the region is not known, or a file with certificates is invalid.
    """
    with _explained(infra.provider):
        match settings:
            case AwsSettings():
                from scavenger.cloud.aws.identity import AwsIdentity, key_of_region

                return AwsIdentity(infra.region, key_of_region(infra.region, settings.identity_certificate))
            case GcpSettings(service_account=account, identity_certificates=file) if account:
                from scavenger.cloud.gcp.identity import GcpIdentity, fetched_certificates, saved_certificates

                if not file:
                    return GcpIdentity(project_of(settings, environment), fetched_certificates)
                saved_certificates(file)  # what is wrong with the file is said before a VM is rented
                read = functools.partial(saved_certificates, file)
                return GcpIdentity(project_of(settings, environment), read)
            case _:
                return None


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise NotSupportedError(
            f"{name} needs {error.name}; install it with `pip install 'scavenger-ml[{name}]'`"
        ) from None
