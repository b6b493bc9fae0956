"""How Compute Engine is opened, and its quotas and prices; see `Adapter`."""

from __future__ import annotations

import functools
from typing import Any

from scavenger.cloud.adapters import Adapter, Opening
from scavenger.cloud.base import Inspection, Provider
from scavenger.cloud.gcp.names import ALL_GPUS, PROJECT_VARIABLE, spot_quota
from scavenger.cloud.identity import IdentityVerifier
from scavenger.domain.vm import Quota
from scavenger.domain.vm_settings import GcpSettings
from scavenger.errors import ConfigurationError


def project_of(opening: Opening) -> str:
    """The id of the project: the environment's, or else that of the settings.

    Raises:
        ConfigurationError: If neither names one.
    """
    if project := opening.environment.get(PROJECT_VARIABLE):
        return project
    settings = opening.read_settings()
    project = settings.project if isinstance(settings, GcpSettings) else ""
    if not project:
        raise ConfigurationError(
            f"no Google Cloud project is named: set {PROJECT_VARIABLE}, or gcp.project in {opening.settings_file}"
        )
    return project


def _open(opening: Opening) -> Provider:
    from scavenger.cloud.gcp.provider import GcpProvider

    project = project_of(opening)
    # Below the reconciler's time limit for a call; a launch that takes longer is repeated with the same token.
    return GcpProvider(project, opening.region, environment=opening.environment, operation_timeout_s=45.0)


def _inspect(provider: Any) -> Inspection:
    from scavenger.cloud.gcp.inspection import GcpInspection

    return GcpInspection(provider)


def _verify(opening: Opening) -> IdentityVerifier | None:
    """Compute Engine gives a proof to VMs with a service account only."""
    settings = opening.read_settings()
    assert isinstance(settings, GcpSettings)
    if not settings.service_account:
        return None
    from scavenger.cloud.gcp.identity import GcpIdentity, fetched_certificates, saved_certificates

    file = settings.identity_certificates
    if not file:
        return GcpIdentity(project_of(opening), fetched_certificates)
    saved_certificates(file)  # what is wrong with the file is said before a VM is rented
    return GcpIdentity(project_of(opening), functools.partial(saved_certificates, file))


_GPUS = {
    "g2-standard": "NVIDIA_L4_GPUS",
    "g4-standard": "NVIDIA_RTX_PRO_6000_GPUS",
    "a2-highgpu": "NVIDIA_A100_GPUS",
    "a2-megagpu": "NVIDIA_A100_GPUS",
    "a2-ultragpu": "NVIDIA_A100_80GB_GPUS",
    "a3-highgpu": "NVIDIA_H100_GPUS",
    "a3-megagpu": "NVIDIA_H100_MEGA_GPUS",
    "a3-ultragpu": "NVIDIA_H200_GPUS",
    "a4-highgpu": "NVIDIA_B200_GPUS",
}
"""Regional quota by series and class of machine types; such VMs need none of CPUs."""

_CPUS = dict.fromkeys(("e2", "n1", "f1", "g1", "custom"), "CPUS") | {
    series: f"{series.upper()}_CPUS"
    for series in ("c2", "c2d", "c3", "m1", "m2", "m3", "n2", "n2d", "t2a", "t2d")
}
"""Regional quota by series of machine types; other series count against one that a region does not show.

E2_CPUS is shown, but E2 counts against CPUS. C3D, C4, N4 and later count against CPUS_PER_VM_FAMILY.

References:
    .. [1] https://docs.cloud.google.com/compute/resource-usage#cpu_quota
"""


def gpus_of(vm: str, cpus: int) -> tuple[str, int]:
    """The quota that counts the GPUs of a machine type on demand, and how many it has; empty and 0 without GPUs.

    References:
        .. [1] https://docs.cloud.google.com/compute/docs/accelerator-optimized-machines
    """
    kind, _, size = vm.rpartition("-")
    if kind not in _GPUS:
        return "", 0
    if size.endswith("g"):  # a2-highgpu-4g
        return _GPUS[kind], int(size[:-1])
    if kind == "g4-standard":
        return _GPUS[kind], cpus // 48
    return _GPUS[kind], cpus // 12 if cpus % 12 == 0 else 1


def _share(quota: Quota, vm: str, cpus: int, spot: bool) -> float:
    """A preemptible quota of 0 means that there is none."""
    if quota.name == "INSTANCES":
        return 1.0
    by_gpu, gpus = gpus_of(vm, cpus)
    if quota.name == ALL_GPUS:
        return float(gpus)
    on_demand = by_gpu or _CPUS.get(vm.partition("-")[0], "")
    applies = {
        on_demand: quota.spot_too or not spot,
        spot_quota(on_demand): spot and quota.limit > 0,
    }
    return float(gpus if by_gpu else cpus) if applies.get(quota.name) else 0.0


ADAPTER = Adapter(_open, _inspect, _verify, share=_share)
