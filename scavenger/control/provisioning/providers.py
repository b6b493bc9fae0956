"""The cloud providers by name. The client library of a provider is loaded when it is opened."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from scavenger.cloud.adapters import Opening, adapter_of
from scavenger.cloud.base import Provider
from scavenger.cloud.identity import IdentityVerifier
from scavenger.control.settings import cloud_settings, settings_of, settings_path
from scavenger.domain.infra import Infra
from scavenger.domain.providers import find_kind
from scavenger.domain.vm_settings import CloudSettings, KubernetesSettings
from scavenger.errors import NotSupportedError

if TYPE_CHECKING:
    from scavenger.cloud.kubernetes.provider import KubernetesProvider


def opening_of(
    name: str,
    region: str,
    environment: Mapping[str, str] = os.environ,
    settings: CloudSettings | None = None,
) -> Opening:
    """What a provider is opened with.

    Args:
        settings: Those of the job; None to read the settings file for what the environment does not say.
    """
    return Opening(
        region,
        environment,
        lambda: cloud_settings(name, environment) if settings is None else settings,
        str(settings_path(environment)),
    )


def project_of(environment: Mapping[str, str]) -> str:
    """The id of the Google Cloud project: the environment's, or else that of the settings.

    Raises:
        ConfigurationError: If neither names one.
    """
    from scavenger.cloud.gcp.adapter import project_of

    return project_of(opening_of("gcp", "", environment))


def open_provider(
    name: str,
    region: str,
    environment: Mapping[str, str] = os.environ,
    settings: CloudSettings | None = None,
) -> Provider:
    """Open a cloud provider in one region.

    Args:
        environment: Environment variables.
        settings: See `opening_of`.

    Raises:
        NotSupportedError: If there is no such provider, or its client library is not installed.
        ConfigurationError: If the region or another setting is invalid.
        CredentialsError: If there are no credentials.
    """
    adapter = adapter_of(name)
    with _explained(name):
        return adapter.open(opening_of(name, region, environment, settings))


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
    from scavenger.cloud.kubernetes.adapter import open_cluster

    with _explained("kubernetes"):
        return open_cluster(opening_of("kubernetes", infra.region, environment, settings))


def open_api_server(infra: Infra) -> Any:
    """A client of the API server of a cluster, as `open_provider` opens any cloud."""
    with _explained("kubernetes"):
        from scavenger.cloud.kubernetes.elastic_jobs import api_client

        return api_client(context=infra.location)


def open_verifier(
    infra: Infra, settings: CloudSettings, environment: Mapping[str, str] = os.environ
) -> IdentityVerifier | None:
    """Open the verifier of the identity of a job's VMs; None if their cloud gives them no proof of it.

    Raises:
        NotSupportedError: If a library is not installed.
        ConfigurationError: If the key of the region is not known, or a file with certificates is invalid.
    """
    adapter = adapter_of(infra.provider)
    with _explained(infra.provider):
        return adapter.verify(opening_of(infra.provider, infra.region, environment, settings))


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        kind = find_kind(name)
        extra = "" if kind is None else kind.extra
        how = f"; install it with `pip install 'scavenger-ml[{extra}]'`" if extra else ""
        raise NotSupportedError(f"{name} needs {error.name}{how}") from None
