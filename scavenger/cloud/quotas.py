"""Computes how many VMs of a type a region's quotas still allow, for the planning of a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from scavenger.cloud.aws.values import quota_name
from scavenger.cloud.catalog.types import GIB
from scavenger.cloud.kubernetes.shapes import PodShape
from scavenger.domain.vm import Quota

_Share = Callable[[Quota, str, int, bool], float]


def _aws(quota: Quota, vm: str, cpus: int, spot: bool) -> float:
    return float(cpus) if quota.name == quota_name(vm, spot=spot) else 0.0


def _gcp(quota: Quota, vm: str, cpus: int, spot: bool) -> float:
    """Share of a quota that one VM takes; a preemptible quota of 0 means that there is none."""
    if quota.name == "INSTANCES":
        return 1.0
    if quota.name == "PREEMPTIBLE_CPUS":
        return float(cpus) if spot and quota.limit > 0 else 0.0
    family = vm.partition("-")[0].upper()
    return float(cpus) if not spot and quota.name in ("CPUS", f"{family}_CPUS") else 0.0


def _kubernetes(quota: Quota, vm: str, cpus: int, spot: bool) -> float:
    """Share of a resource quota that one pod takes, whose name is that of the quota and the resource."""
    resource = quota.name.rpartition("/")[2]
    if resource == "pods":
        return 1.0
    if resource in ("cpu", "requests.cpu", "limits.cpu"):
        return float(cpus)
    if resource in ("memory", "requests.memory", "limits.memory"):
        return PodShape.parse(vm).memory_gib * GIB
    return float(PodShape.parse(vm).gpus)


_SHARES: Mapping[str, _Share] = {"aws": _aws, "gcp": _gcp, "kubernetes": _kubernetes, "kuberay": _kubernetes}


def vms_left(
    provider: str, quotas: Iterable[Quota], vm: str, cpus: int, *, spot: bool
) -> tuple[int, Quota] | None:
    """Number of VMs of a type that may still be started, and the limiting quota; None if no known quota applies.

    Other quotas (of the whole project, of newer generations of a family) are reported when a launch exceeds them.
    """
    share = _SHARES[provider]
    found = [
        (max(0, math.floor((quota.limit - quota.used) / taken)), quota)
        for quota in quotas
        if (taken := share(quota, vm, cpus, spot)) > 0.0
    ]
    return min(found, key=lambda pair: pair[0], default=None)


def vms_left_of_either(
    provider: str, quotas: Iterable[Quota], vm: str, cpus: int
) -> tuple[int, Quota] | None:
    """Number of VMs of a type that may still be started if on-demand VMs stand in for spot VMs; see `vms_left`."""
    quotas = tuple(quotas)
    spot = vms_left(provider, quotas, vm, cpus, spot=True)
    others = vms_left(provider, quotas, vm, cpus, spot=False)
    if spot is None or others is None:
        return None
    share = _SHARES[provider]
    of_both = [
        quota for quota in quotas if share(quota, vm, cpus, True) > 0.0 < share(quota, vm, cpus, False)
    ]
    together = vms_left(provider, of_both, vm, cpus, spot=True)
    apart = (spot[0] + others[0], spot[1])
    return apart if together is None else min(apart, together, key=lambda pair: pair[0])


def after_vms(provider: str, quotas: Iterable[Quota], vm: str, cpus: int, *, vms: int) -> tuple[Quota, ...]:
    """The quotas when so many on-demand VMs of a type more are in use."""
    share = _SHARES[provider]
    return tuple(replace(quota, used=quota.used + vms * share(quota, vm, cpus, False)) for quota in quotas)
