"""How EC2 is opened, and its quotas and prices; see `Adapter`."""

from __future__ import annotations

from typing import Any

from scavenger.cloud.adapters import Adapter, Opening
from scavenger.cloud.aws.values import quota_name
from scavenger.cloud.base import Inspection, Provider
from scavenger.cloud.identity import IdentityVerifier
from scavenger.domain.vm import Quota
from scavenger.domain.vm_settings import AwsSettings


def _open(opening: Opening) -> Provider:
    from scavenger.cloud.aws.provider import AwsProvider

    return AwsProvider(opening.region)


def _inspect(provider: Any) -> Inspection:
    from scavenger.cloud.aws.inspection import AwsInspection

    return AwsInspection(provider)


def _verify(opening: Opening) -> IdentityVerifier:
    from scavenger.cloud.aws.identity import AwsIdentity, key_of_region

    settings = opening.read_settings()
    assert isinstance(settings, AwsSettings)
    return AwsIdentity(opening.region, key_of_region(opening.region, settings.identity_certificate))


def _share(quota: Quota, vm: str, cpus: int, spot: bool) -> float:
    return float(cpus) if quota.name == quota_name(vm, spot=spot) else 0.0


ADAPTER = Adapter(_open, _inspect, _verify, share=_share)
