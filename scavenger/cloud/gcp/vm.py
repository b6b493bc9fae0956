"""Converts VM requests to Compute Engine's instances, and its instances to `VmSeen`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from google.cloud import compute_v1

from scavenger.cloud.boot.user_data import user_data
from scavenger.cloud.gcp.logins import login_tag
from scavenger.cloud.gcp.names import custom_type, instance_name, labels_of, run_max_of, tags_of
from scavenger.domain.vm import VmRequest, VmSeen, VmState
from scavenger.errors import ConfigurationError

_IMAGES = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts"
"""The newest long-term image with cloud-init, which reads the user data; Google's default, Debian, has none."""
_GPU_IMAGES = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2404"
"""The same with NVIDIA's driver, by Canonical and Google."""

_ARM = re.compile(r"[a-z]\d+a|a4x")
_ACCELERATED = re.compile(r"[ag]\d\w*")
"""Families that come with accelerators: they cannot move to another host, and their drivers are not signed."""
_FAMILY = re.compile(r"([a-z]+)(\d*)[a-z]*")
_HYPERDISK_GENERATION = 4
"""Families from the fourth generation on take no persistent disk but a Hyperdisk."""

_RUN_MIN_S = 30
_RUN_MAX_S = 120 * 86_400
"""Limits of `maxRunDuration`: https://cloud.google.com/compute/docs/instances/limit-vm-runtime"""

_STATES: dict[str, VmState] = {
    "PENDING": "pending",
    "PROVISIONING": "pending",
    "STAGING": "pending",
    "RUNNING": "running",
    "REPAIRING": "running",
}
"""Every other status is `stopping`: a VM that was stopped or suspended has a disk to pay for until it is deleted."""


@dataclass(frozen=True, slots=True)
class GcpInstallation:
    """What all VMs of an installation share, in addition to each request's `VmSettings`.

    Attributes:
        image: In place of Ubuntu's newest long-term image; needs cloud-init.
        preemption_notice_s: How long before its end a spot VM is notified of it; 0 for the platform's default.
    """

    image: str = ""
    preemption_notice_s: int = 120


def instance_of(request: VmRequest, settings: GcpInstallation) -> compute_v1.Instance:
    """The body of the insert: everything that tells the VM as ours is in it.

    Raises:
        ConfigurationError: If Compute Engine could not make such a VM.
    """
    custom_type(request.vm)
    labels = labels_of(request)
    place = f"zones/{request.zone}"
    family = request.vm.partition("-")[0]
    image = request.template.image or settings.image
    accelerated = _ACCELERATED.fullmatch(family) is not None
    instance = compute_v1.Instance(
        name=instance_name(request.tags.token),
        labels=labels,
        machine_type=f"{place}/machineTypes/{request.vm}",
        disks=[
            compute_v1.AttachedDisk(
                boot=True,
                auto_delete=True,
                initialize_params=compute_v1.AttachedDiskInitializeParams(
                    source_image=image or _default_image(family),
                    disk_size_gb=request.template.disk_gib,
                    disk_type=f"{place}/diskTypes/{_disk_type(family)}",
                    labels=labels,
                ),
            )
        ],
        network_interfaces=[_interface(request)],
        scheduling=_scheduling(request, settings, accelerated=accelerated),
        metadata=_metadata(request),
    )
    own = request.template.settings
    if own.identity:  # without one, a VM can do nothing in the project, nor prove which one it is
        instance.service_accounts = [
            compute_v1.ServiceAccount(
                email=own.identity, scopes=["https://www.googleapis.com/auth/cloud-platform"]
            )
        ]
    if tags := [*own.firewalls, *([login_tag(request.tags.owner)] if own.logins_from else [])]:
        instance.tags = compute_v1.Tags(items=tags)
    if own.kms_key:
        instance.disks[0].disk_encryption_key = compute_v1.CustomerEncryptionKey(kms_key_name=own.kms_key)
    if not image:  # of another's image nobody knows what it boots with
        instance.shielded_instance_config = compute_v1.ShieldedInstanceConfig(
            enable_vtpm=True, enable_integrity_monitoring=True, enable_secure_boot=not accelerated
        )
    return instance


def seen_of(instance: compute_v1.Instance, zone: str) -> VmSeen:
    """A VM as Compute Engine shows it."""
    interfaces = instance.network_interfaces
    state = _STATES.get(instance.status, "stopping")
    reason = instance.status_message
    if state == "stopping" and not reason:
        reason = instance.status
    return VmSeen(
        instance_id=str(instance.id),
        vm=instance.machine_type.rpartition("/")[2],
        zone=zone,
        spot=instance.scheduling.provisioning_model == "SPOT" or instance.scheduling.preemptible,
        state=state,
        tags=tags_of(instance.labels),
        address=interfaces[0].network_i_p if interfaces else "",
        public_address=next(
            (one.nat_i_p for each in interfaces for one in each.access_configs if one.nat_i_p), ""
        ),
        run_max_s=run_max_of(instance.labels),
        launched_at=time_of(instance.creation_timestamp),
        ended_at=time_of(instance.last_stop_timestamp) if state == "stopping" else None,
        reason=reason if state == "stopping" else "",
        queued=instance.status == "PROVISIONING",  # stock and quota are still asked: it may never be there
    )


def time_of(text: str) -> datetime | None:
    """A time of RFC 3339 in UTC; None for none, or none that can be read."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except ValueError:
        return None


def _scheduling(request: VmRequest, settings: GcpInstallation, *, accelerated: bool) -> compute_v1.Scheduling:
    if not (math.isfinite(request.template.run_max_s) and 0 < request.template.run_max_s <= _RUN_MAX_S):
        raise ConfigurationError(
            f"a VM of Google Cloud ends itself after at most {_RUN_MAX_S // 86_400} days, "
            f"not {request.template.run_max_s:g} s"
        )
    scheduling = compute_v1.Scheduling(
        provisioning_model="SPOT" if request.spot else "STANDARD",
        instance_termination_action="DELETE",
        max_run_duration=compute_v1.Duration(seconds=max(_RUN_MIN_S, math.ceil(request.template.run_max_s))),
        # one that came back by itself would be a worker that has been replaced
        automatic_restart=False,
    )
    if request.spot or accelerated:
        scheduling.on_host_maintenance = "TERMINATE"
    if request.spot and settings.preemption_notice_s:
        scheduling.preemption_notice_duration = compute_v1.Duration(seconds=settings.preemption_notice_s)
    return scheduling


def _metadata(request: VmRequest) -> compute_v1.Metadata:
    """The user data, which has the key of whoever may log in; keys of the project and its accounts do not count."""
    items = {"user-data": user_data(request)}
    if request.template.settings.logins_from:
        items |= {"enable-oslogin": "FALSE", "block-project-ssh-keys": "TRUE"}
    return compute_v1.Metadata(items=[compute_v1.Items(key=key, value=value) for key, value in items.items()])


def _interface(request: VmRequest) -> compute_v1.NetworkInterface:
    settings, interface = request.template.settings, compute_v1.NetworkInterface()
    if settings.network or not settings.subnets:  # a subnetwork determines its network
        network = settings.network or "default"
        interface.network = network if "/" in network else f"global/networks/{network}"
    for subnetwork in settings.subnets:
        region = request.zone.rpartition("-")[0]
        interface.subnetwork = (
            subnetwork if "/" in subnetwork else f"regions/{region}/subnetworks/{subnetwork}"
        )
    if settings.public_address is not False:
        interface.access_configs = [compute_v1.AccessConfig(name="External NAT", type_="ONE_TO_ONE_NAT")]
    return interface


def _default_image(family: str) -> str:
    architecture = "arm64" if _ARM.fullmatch(family) else "amd64"
    if _ACCELERATED.fullmatch(family):
        return f"{_GPU_IMAGES}-{architecture}-with-nvidia-580"
    return f"{_IMAGES}-{architecture}"


def _disk_type(family: str) -> str:
    found = _FAMILY.fullmatch(family)
    generation = int(found[2] or 0) if found else 0
    return "hyperdisk-balanced" if generation >= _HYPERDISK_GENERATION else "pd-balanced"
