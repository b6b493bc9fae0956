"""The cloud providers by name. The client library of a provider is loaded when it is opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from scavenger.cloud.base import Inspection, Provider
from scavenger.errors import ConfigurationError, NotSupportedError

__all__ = ["INSPECTIONS", "PROVIDERS", "open_provider"]

GCP_PROJECT = "GOOGLE_CLOUD_PROJECT"
"""Environment variable with the project's id, as for Google's own tools."""


def _aws(region: str, environment: Mapping[str, str]) -> Provider:
    from scavenger.cloud.aws.provider import AwsProvider

    return AwsProvider(region)


def _gcp(region: str, environment: Mapping[str, str]) -> Provider:
    from scavenger.cloud.gcp.provider import GcpProvider

    if not (project := environment.get(GCP_PROJECT)):
        raise ConfigurationError(f"no Google Cloud project is named: set {GCP_PROJECT}")
    # Below the reconciler's time limit for a call; a launch that takes longer is repeated with the same token.
    return GcpProvider(project, region, environment=environment, operation_timeout_s=45.0)


PROVIDERS: dict[str, Callable[[str, Mapping[str, str]], Provider]] = {"aws": _aws, "gcp": _gcp}


def _inspect_aws(provider: Any) -> Inspection:
    from scavenger.cloud.aws.inspection import AwsInspection

    return AwsInspection(provider)


def _inspect_gcp(provider: Any) -> Inspection:
    from scavenger.cloud.gcp.inspection import GcpInspection

    return GcpInspection(provider)


INSPECTIONS: dict[str, Callable[[Any], Inspection]] = {"aws": _inspect_aws, "gcp": _inspect_gcp}


def open_provider(name: str, region: str, environment: Mapping[str, str] = os.environ) -> Provider:
    """Open a cloud provider in one region.

    Raises:
        NotSupportedError: If this version does not support the cloud, or its client library is not installed.
        ConfigurationError: If the region or another setting is invalid.
        CredentialsError: If there are no credentials.
    """
    if name not in PROVIDERS:
        raise NotSupportedError(f"cloud {name!r} is not supported; supported are {', '.join(PROVIDERS)}")
    try:
        return PROVIDERS[name](region, environment)
    except ModuleNotFoundError as error:
        raise NotSupportedError(
            f"{name} needs {error.name}; install it with `pip install 'scavenger-ml[{name}]'`"
        ) from None
