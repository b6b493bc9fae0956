"""Computes how many VMs of a type a region's quotas still allow, for the planning of a job."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from scavenger.cloud.adapters import adapter_of
from scavenger.domain.vm import Quota


def vms_left(
    provider: str, quotas: Iterable[Quota], vm: str, cpus: int, *, spot: bool
) -> tuple[int, Quota] | None:
    """Number of VMs of a type that may still be started, and the limiting quota; None if no known quota applies.

    Other quotas (of the whole project, of newer generations of a family) are reported when a launch exceeds them.
    """
    share = adapter_of(provider).share
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
    share = adapter_of(provider).share
    of_both = [
        quota for quota in quotas if share(quota, vm, cpus, True) > 0.0 < share(quota, vm, cpus, False)
    ]
    together = vms_left(provider, of_both, vm, cpus, spot=True)
    apart = (spot[0] + others[0], spot[1])
    return apart if together is None else min(apart, together, key=lambda pair: pair[0])


def after_vms(provider: str, quotas: Iterable[Quota], vm: str, cpus: int, *, vms: int) -> tuple[Quota, ...]:
    """The quotas when so many on-demand VMs of a type more are in use."""
    share = adapter_of(provider).share
    return tuple(replace(quota, used=quota.used + vms * share(quota, vm, cpus, False)) for quota in quotas)
