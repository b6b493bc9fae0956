"""Converts AWS's VMs, quotas and tags to the values of `scavenger.domain.vm`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scavenger.domain.vm import Quota, VmRequest, VmSeen, VmState, VmTags

OWNER_TAG = "scavenger-owner"
TOKEN_TAG = "scavenger-token"  # noqa: S105 - a tag's name, no secret
_JOB_TAG = "scavenger-job"
SLOT_TAG = "scavenger-slot"
_GENERATION_TAG = "scavenger-generation"
_RUN_MAX_TAG = "scavenger-run-max"

_STATES: Mapping[str, VmState] = {
    "pending": "pending",
    "running": "running",
    "shutting-down": "stopping",
    "stopping": "stopping",
    "stopped": "stopping",  # its disk is paid for still
    "terminated": "gone",
}
_TRANSITION_TIME = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


def tags_of(request: VmRequest) -> list[dict[str, str]]:
    """All tags of a launch, ours over the user's."""
    tags = {
        "Name": f"scavenger-{request.tags.job_id}-{request.tags.slot}",
        **dict(request.template.labels),
        OWNER_TAG: request.tags.owner,
        TOKEN_TAG: request.tags.token,
        _JOB_TAG: request.tags.job_id,
        SLOT_TAG: str(request.tags.slot),
        _GENERATION_TAG: str(request.tags.generation),
        _RUN_MAX_TAG: request.template.run_max_tag,
    }
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def vm_seen(instance: Mapping[str, Any]) -> VmSeen:
    """An `Instance` of the EC2 API; a tag that somebody has changed by hand counts as none."""
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
    state = _STATES.get(instance["State"]["Name"], "pending")
    transition = str(instance.get("StateTransitionReason") or "")
    leaving = state in ("stopping", "gone")
    launched = instance.get("LaunchTime")
    return VmSeen(
        instance_id=instance["InstanceId"],
        vm=instance["InstanceType"],
        zone=instance.get("Placement", {}).get("AvailabilityZone", ""),
        spot=instance.get("InstanceLifecycle") == "spot",
        state=state,
        tags=VmTags(
            token=tags.get(TOKEN_TAG, ""),
            owner=tags.get(OWNER_TAG, ""),
            job_id=tags.get(_JOB_TAG, ""),
            slot=_number(tags.get(SLOT_TAG)),
            generation=_number(tags.get(_GENERATION_TAG)),
        ),
        address=str(instance.get("PrivateIpAddress") or ""),
        public_address=str(instance.get("PublicIpAddress") or ""),
        launched_at=launched.astimezone(UTC) if launched else None,
        ended_at=_time(transition) if state == "gone" else None,
        run_max_s=max(0, _number(tags.get(_RUN_MAX_TAG))),
        reason=(str(instance.get("StateReason", {}).get("Message") or "") or transition) if leaving else "",
    )


def _number(tag: str | None) -> int:
    return int(tag) if tag is not None and tag.isascii() and tag.isdigit() else -1


def _time(transition: str) -> datetime | None:
    found = _TRANSITION_TIME.search(transition)
    return datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC) if found else None


@dataclass(frozen=True, slots=True)
class _Bucket:
    """VM families that share a quota of vCPUs; the codes are the same in every region and account.

    Attributes:
        families: Letters, with the number of the generation where it matters.
        spot_label, spot_code: Of spot VMs; empty: as on demand, and not known.
    """

    families: frozenset[str]
    label: str
    on_demand_code: str
    spot_code: str = ""
    spot_label: str = ""

    def quota(self, *, spot: bool) -> tuple[str, str]:
        """Code and name, which AWS has changed before."""
        if spot:
            return self.spot_code, f"All {self.spot_label or self.label} Spot Instance Requests"
        return self.on_demand_code, f"Running On-Demand {self.label} instances"


_BUCKETS = (
    _Bucket(frozenset({"g", "gr", "vt"}), "G and VT", "L-DB2E81BA", "L-3819A6DF"),
    _Bucket(frozenset({"p2", "p3", "p4"}), "P", "L-417A185B", "L-7212CCBC", "P4, P3 and P2"),
    _Bucket(frozenset({"p5"}), "P", "L-417A185B", "L-C4BD4855", "P5"),
    _Bucket(frozenset({"p"}), "P", "L-417A185B"),
    _Bucket(frozenset({"x"}), "X", "L-7295265B", "L-E3A00192"),
    _Bucket(frozenset({"inf"}), "Inf", "L-1945791B", "L-B5D1601B"),
    _Bucket(frozenset({"dl"}), "DL", "L-6E869C2A", "L-85EED4F7"),
    _Bucket(frozenset({"f"}), "F", "L-74FC7D96", "L-88CF9481"),
)
_STANDARD = _Bucket(
    frozenset({"a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"}),
    "Standard (A, C, D, H, I, M, R, T, Z)",
    "L-1216C47A",
    "L-34B43A08",
)


def _bucket(vm: str) -> _Bucket | None:
    family = re.match(r"([a-z]*)\d*", vm)
    names = {family[0], family[1]} if family else {""}
    return next((bucket for bucket in (_STANDARD, *_BUCKETS) if names & bucket.families), None)


def quota_name(vm: str, *, spot: bool) -> str:
    """The quota that a VM type counts against, in AWS's words."""
    bucket = _bucket(vm) or _Bucket(frozenset(), vm.partition(".")[0] or "EC2", "")
    return bucket.quota(spot=spot)[1]


def quotas_of(
    service_quotas: Iterable[Mapping[str, Any]],
    running: Iterable[tuple[str, bool]],
    vcpus: Mapping[str, int],
    *,
    region: str,
) -> tuple[Quota, ...]:
    """The vCPU quotas of the region with what runs against them.

    Args:
        service_quotas: `ServiceQuota` values of service `ec2`; those on other things are left out.
        running: VM type of every pending or running instance of the account, and whether it is spot.
        vcpus: Of each of these types.
        region: Where they hold.
    """
    used: dict[str, float] = {}
    for vm, spot in running:
        bucket = _bucket(vm)
        if bucket is not None:
            code, _ = bucket.quota(spot=spot)
            used[code] = used.get(code, 0.0) + vcpus.get(vm, 0)
    names = dict(bucket.quota(spot=spot) for bucket in (_STANDARD, *_BUCKETS) for spot in (False, True))
    return tuple(
        Quota(
            name=names[quota["QuotaCode"]],
            region=region,
            limit=float(quota["Value"]),
            used=used.get(quota["QuotaCode"], 0.0),
        )
        for quota in service_quotas
        if quota.get("QuotaCode") in names
    )
