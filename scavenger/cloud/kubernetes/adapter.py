"""How a Kubernetes cluster and the RayClusters in it are opened, and their quotas; see `Adapter`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from scavenger.cloud.adapters import Adapter, Opening
from scavenger.cloud.base import Provider
from scavenger.cloud.kubernetes.shapes import PodShape
from scavenger.cloud.stock import GIB
from scavenger.domain.providers import CURRENT
from scavenger.domain.vm import Quota
from scavenger.domain.vm_settings import KubernetesSettings

if TYPE_CHECKING:
    from scavenger.cloud.kubernetes.provider import KubernetesProvider

POD_OWNER = "SCAVENGER_POD_OWNER"
"""Environment variable of a leader in a cluster: the reference, in JSON, to the object with which its pods end."""


def open_cluster(opening: Opening) -> KubernetesProvider:
    """Open a cluster."""
    from scavenger.cloud.kubernetes.pods import PodSettings
    from scavenger.cloud.kubernetes.provider import KubernetesProvider

    settings = opening.read_settings()
    assert isinstance(settings, KubernetesSettings)
    owner = opening.environment.get(POD_OWNER)
    pods = PodSettings.of(settings, owner=msgspec.json.decode(owner, type=dict[str, str]) if owner else None)
    context = "" if opening.region == CURRENT else opening.region
    return KubernetesProvider(context, settings=pods, environment=opening.environment)


def _open_ray(opening: Opening) -> Provider:
    from scavenger.cloud.kubernetes.ray_groups import RayGroupProvider

    return RayGroupProvider(opening.region, environment=opening.environment)


def _share(quota: Quota, vm: str, cpus: int, spot: bool) -> float:
    """Share of a resource quota that one pod takes, whose name is that of the quota and the resource."""
    resource = quota.name.rpartition("/")[2]
    if resource == "pods":
        return 1.0
    if resource in ("cpu", "requests.cpu", "limits.cpu"):
        return float(cpus)
    if resource in ("memory", "requests.memory", "limits.memory"):
        return PodShape.parse(vm).memory_gib * GIB
    return float(PodShape.parse(vm).gpus)


ADAPTER = Adapter(open_cluster, share=_share)
RAY_ADAPTER = Adapter(_open_ray, share=_share)
