"""A project of Compute Engine in memory: its VMs, disks and operations as time goes by.

Nothing happens by itself: what a VM or an operation is follows from the clock when somebody looks.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from ipaddress import ip_address, ip_network
from typing import Any, ClassVar
from uuid import UUID

from gcp_discovery import RefusedError

PROJECT = "a-project"
REGION = "us-central1"
ZONES = {
    "us-central1-a": REGION,
    "us-central1-b": REGION,
    "us-central1-f": REGION,
    "europe-west4-a": "europe-west4",
}
TYPES = {
    "e2-standard-2": (2, 8192),
    "e2-standard-4": (4, 16384),
    "n2-standard-8": (8, 32768),
    "g2-standard-24": (24, 98304),
}
GPUS = {"g2-standard-24": 2}
"""Of those that have some: they cannot move to another host."""
NOT_IN = {("n2-standard-8", "us-central1-f"), ("e2-standard-2", "us-central1-b")}
ALL_GPUS = "GPUS_ALL_REGIONS"
QUOTA_OF = {
    **dict.fromkeys(("a2", "a3", "a4", "g4"), ""),  # their GPUs are counted, not their CPUs
    **dict.fromkeys(("e2", "n1", "f1", "g1"), "CPUS"),
    "c2": "C2_CPUS",
    "c2d": "C2D_CPUS",
    "c3": "C3_CPUS",
    "m1": "M1_CPUS",
    "m2": "M2_CPUS",
    "m3": "M3_CPUS",
    "n2": "N2_CPUS",
    "n2d": "N2D_CPUS",
    "t2a": "T2A_CPUS",
    "t2d": "T2D_CPUS",
    "g2": "NVIDIA_L4_GPUS",
}
"""By series, on demand. Others count against CPUS_PER_VM_FAMILY, which a region does not show."""
LIMITS = {metric: 200.0 for metric in QUOTA_OF.values() if metric} | {
    "E2_CPUS": 24.0,  # shown, but nothing counts against it
    "A2_CPUS": 0.0,
    "PREEMPTIBLE_CPUS": 200.0,
    "COMMITTED_CPUS": 0.0,
    "NVIDIA_L4_GPUS": 8.0,
    "PREEMPTIBLE_NVIDIA_L4_GPUS": 8.0,
    "COMMITTED_NVIDIA_L4_GPUS": 0.0,
    ALL_GPUS: 16.0,
}
ROOT = "https://www.googleapis.com/compute/v1"

REQUEST_ID_KEPT_S = 3600.0
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_ABROAD = timezone(timedelta(hours=-8))
"""Google tells times of the Pacific."""


class Clock:
    """Time that goes by when a test says so; may be used as a provider's clock and sleep."""

    def __init__(self) -> None:
        self._now, self._lock = 1000.0, threading.Lock()

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds


@dataclass
class Machine:
    id: int
    name: str
    zone: str
    body: dict[str, Any]
    created_at: float
    up_after_s: float = 8.0
    ends_at: float = float("inf")
    gone_at: float = float("inf")
    reason: str = ""
    address: str = ""
    off_at: float | None = None
    """When it powered itself off: it is there still, and its disk is paid for."""

    @property
    def up_at(self) -> float:
        return self.created_at + self.up_after_s

    def end(self, at: float, after: float, reason: str = "") -> None:
        """Begin to end it, where that is not under way already."""
        if at < self.ends_at:
            self.ends_at, self.gone_at, self.reason = at, at + after, reason


@dataclass
class Operation:
    id: int
    kind: str
    zone: str
    target: str
    target_id: int
    created_at: float
    takes_s: float
    request_id: str = ""
    error: dict[str, Any] | None = None
    status: int = 0

    @property
    def name(self) -> str:
        return f"operation-{self.id}"


@dataclass
class Project:
    """All that there is; every method is called with `lock` held.

    Attributes:
        stock_out: Zones with nothing to give; told by the operation.
        vms_max: Of the region; told at once, or by the operation where `quota_late`.
        limits: Of other quotas; spot VMs count as on demand where theirs is 0.
        hidden_s: How long lists miss what is new.
        networks: Names of the project's networks.
        constraints: Those of the organisation that hold: `compute.vmExternalIpAccess`.
        forbidden_accounts: Service accounts that the caller may not give to VMs.
        breaks: The codes that the next operations of an insert end with.
        consoles: What VMs have written, by their numbers.
        without_notice: Machine families that take no `preemptionNoticeDuration`.
    """

    starts_after_s: ClassVar[float] = 1.0
    up_after_s: ClassVar[float] = 8.0
    deleted_after_s: ClassVar[float] = 60.0
    preempted_after_s: ClassVar[float] = 30.0

    clock: Callable[[], float]
    lock: threading.RLock = field(default_factory=threading.RLock)
    stock_out: set[str] = field(default_factory=set)
    vms_max: int | None = None
    limits: dict[str, float] = field(default_factory=lambda: dict(LIMITS))
    quota_late: bool = False
    hidden_s: float = 0.0
    breaks: list[tuple[str, int]] = field(default_factory=list)
    without_notice: set[str] = field(default_factory=set)
    leaves_disk: bool = False
    networks: set[str] = field(default_factory=lambda: {"default"})
    constraints: set[str] = field(default_factory=set)
    forbidden_accounts: set[str] = field(default_factory=set)
    machines: dict[int, Machine] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    consoles: dict[int, str] = field(default_factory=dict)
    disks: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    firewalls: dict[str, dict[str, Any]] = field(default_factory=lambda: {"default-allow-ssh": _allow_ssh()})
    _changes: dict[str, tuple[float, Callable[[], object]]] = field(default_factory=dict)
    _requests: dict[str, tuple[str, float]] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=lambda: iter(range(7_100_000_000_000_000_001, 2**63)))

    def alive(self) -> list[Machine]:
        return [each for each in self.machines.values() if each.gone_at > self.clock()]

    def usage(self) -> dict[str, tuple[float, float]]:
        """Quotas of the region: used and allowed."""
        here = [each for each in self.alive() if ZONES[each.zone] == REGION]
        used = dict.fromkeys(self.limits, 0.0)
        for each in here:
            metric, amount = self._counted(each.zone, each.body)
            used[metric] = used.get(metric, 0.0) + amount
        most = 1000.0 if self.vms_max is None else float(self.vms_max)
        return {
            **{metric: (used[metric], self.limits[metric]) for metric in self.limits if metric != ALL_GPUS},
            "INSTANCES": (float(len(here)), most),
            "NETWORKS": (1.0, 5.0),
        }

    def usage_everywhere(self) -> dict[str, tuple[float, float]]:
        """Quotas of the project: used and allowed."""
        gpus = sum(GPUS.get(_kind(each.body), 0) for each in self.alive())
        return {ALL_GPUS: (float(gpus), self.limits[ALL_GPUS]), "NETWORKS": (1.0, 15.0)}

    def _counted(self, zone: str, body: dict[str, Any]) -> tuple[str, float]:
        """The region's quota that a VM counts against beside that of VMs, and with how much; empty for none."""
        kind = _kind(body)
        series = kind.partition("-")[0]
        metric = QUOTA_OF.get(series, "CPUS_PER_VM_FAMILY")
        spot = f"PREEMPTIBLE_{metric if series == 'g2' else 'CPUS'}"
        amount = GPUS.get(kind, 0) if series == "g2" else shape(kind, zone)[0]
        return spot if metric and _is_spot(body) and self.limits[spot] else metric, float(amount)

    def find(self, zone: str, instance: str) -> Machine:
        for each in self.alive():
            if each.zone == zone and instance in (each.name, str(each.id)):
                return each
        raise RefusedError(
            404,
            "notFound",
            f"The resource 'projects/{PROJECT}/zones/{zone}/instances/{instance}' was not found",
        )

    def public_address(self, machine: Machine) -> str:
        """Its address in the internet."""
        return machine.address.replace("10.128.0.", "203.0.113.")

    def console(self, machine: Machine) -> str:
        """What a VM has written to its first serial port."""
        return self.consoles.get(machine.id, "")

    def insert(self, zone: str, body: dict[str, Any], request_id: str) -> Operation:
        if known := self._known(request_id):
            return known
        check_instance(zone, body)
        self._check_notice(body)
        name = body["name"]
        if any(each.zone == zone and each.name == name for each in self.alive()):
            place = f"projects/{PROJECT}/zones/{zone}/instances/{name}"
            raise RefusedError(409, "alreadyExists", f"The resource '{place}' already exists")
        self._check_policies(zone, body)
        error, status = self._trouble(zone, body)
        now = self.clock()
        machine = Machine(next(self._ids), name, zone, body, now, self.up_after_s)
        machine.address = f"10.128.0.{machine.id % 250 + 2}"
        if error is not None:
            machine.end(now + self.up_after_s, 0.0)
        else:
            limit = body.get("scheduling", {}).get("maxRunDuration")
            if limit is not None:
                machine.end(machine.up_at + float(limit["seconds"]), self.deleted_after_s)
        self.machines[machine.id] = machine
        if error is None or self.leaves_disk:
            self.disks[name] = (zone, body["disks"][0]["initializeParams"].get("labels", {}))
        operation = self._begin("insert", machine, self.up_after_s, request_id)
        operation.error, operation.status = error, status
        return operation

    def _check_notice(self, body: dict[str, Any]) -> None:
        family = body["machineType"].rpartition("/")[2].partition("-")[0]
        if family in self.without_notice and "preemptionNoticeDuration" in body.get("scheduling", {}):
            raise RefusedError(
                400,
                "invalid",
                "Invalid value for field 'resource.scheduling.preemptionNoticeDuration': "
                f'\'{{  "seconds": "120"}}\'. It is not supported for machine family {family}.',
            )

    def _check_policies(self, zone: str, body: dict[str, Any]) -> None:
        """What Compute Engine refuses for the project's or the organisation's sake, in its words."""
        for interface in body["networkInterfaces"]:
            network = interface.get("network", "")
            if network.startswith("global/") and network.rpartition("/")[2] not in self.networks:
                place = f"{ROOT}/projects/{PROJECT}/{network}"
                raise RefusedError(
                    400,
                    "invalid",
                    f"Invalid value for field 'resource.networkInterfaces[0].network': '{place}'. The referenced "
                    "network resource cannot be found.",
                )
            if "compute.vmExternalIpAccess" in self.constraints and interface.get("accessConfigs"):
                place = f"projects/{PROJECT}/zones/{zone}/instances/{body['name']}"
                raise RefusedError(
                    412,
                    "conditionNotMet",
                    f"Constraint constraints/compute.vmExternalIpAccess violated for project 739419398126. Add "
                    f"instance {place} to the constraint to use external IP with it.",
                )
        for account in body.get("serviceAccounts", []):
            if account["email"] in self.forbidden_accounts:
                raise RefusedError(
                    403,
                    "forbidden",
                    f"The user does not have access to service account '{account['email']}'. Ask a project owner to "
                    "grant you the iam.serviceAccountUser role on the service account",
                )

    # Firewall rules: a change holds when its operation is done

    def firewall(self, name: str) -> dict[str, Any]:
        self._settle()
        if name not in self.firewalls:
            place = f"projects/{PROJECT}/global/firewalls/{name}"
            raise RefusedError(404, "notFound", f"The resource '{place}' was not found")
        return self.firewalls[name]

    def insert_firewall(self, body: dict[str, Any]) -> dict[str, Any]:
        self._settle()
        check_firewall(body)
        network = body["network"].rpartition("/")[2]
        if network not in self.networks:
            place = f"projects/{PROJECT}/global/networks/{network}"
            raise RefusedError(404, "notFound", f"The resource '{place}' was not found")
        if body["name"] in self.firewalls:
            place = f"projects/{PROJECT}/global/firewalls/{body['name']}"
            raise RefusedError(409, "alreadyExists", f"The resource '{place}' already exists")
        whole = {**body, "network": f"{ROOT}/projects/{PROJECT}/global/networks/{network}"}
        return self._change("insert", lambda: self.firewalls.update({body["name"]: whole}))

    def patch_firewall(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        whole = {**self.firewall(name), **body}
        check_firewall(whole)
        return self._change("patch", lambda: self.firewalls.update({name: whole}))

    def delete_firewall(self, name: str) -> dict[str, Any]:
        self.firewall(name)
        return self._change("delete", lambda: self.firewalls.pop(name, None))

    def global_operation(self, name: str) -> dict[str, Any]:
        self._settle()
        status = "RUNNING" if name in self._changes else "DONE"
        return {"kind": "compute#operation", "name": name, "status": status}

    def _change(self, kind: str, do: Callable[[], object]) -> dict[str, Any]:
        name = f"operation-{next(self._ids)}"
        self._changes[name] = (self.clock() + self.starts_after_s, do)
        return {"kind": "compute#operation", "name": name, "operationType": kind, "status": "RUNNING"}

    def _settle(self) -> None:
        for name, (at, do) in list(self._changes.items()):
            if self.clock() >= at:
                do()
                del self._changes[name]

    def lets_in(self, source: str, tags: list[str], port: int = 22) -> bool:
        """Whether a VM with these network tags is reached from an address: the first rule by priority that applies."""
        self._settle()
        for rule in sorted(
            self.firewalls.values(), key=lambda one: (one.get("priority", 1000), "allowed" in one)
        ):
            applies = not rule.get("targetTags") or set(rule["targetTags"]) & set(tags)
            inside = any(ip_address(source) in ip_network(one) for one in rule["sourceRanges"])
            ports = [
                one for kind in ("allowed", "denied") for each in rule.get(kind, ()) for one in each["ports"]
            ]
            if applies and inside and str(port) in ports:
                return "allowed" in rule
        return False

    def delete(self, zone: str, instance: str, request_id: str = "") -> Operation:
        if known := self._known(request_id):
            return known
        machine = self.find(zone, instance)
        machine.end(self.clock(), self.deleted_after_s)
        return self._begin("delete", machine, self.deleted_after_s, request_id)

    def preempt(self, instance_id: int) -> None:
        machine = self.machines[instance_id]
        machine.end(self.clock(), self.preempted_after_s, "Instance was preempted.")
        self._begin("compute.instances.preempted", machine, self.preempted_after_s, "")

    def power_off(self, machine: Machine) -> None:
        """It has shut itself down: it is there still, `TERMINATED`, until somebody deletes it."""
        machine.off_at = self.clock()
        self._begin("compute.instances.guestTerminate", machine, 0.0, "")

    def _known(self, request_id: str) -> Operation | None:
        if not request_id:
            return None
        if str(UUID(request_id)) != request_id or UUID(request_id).int == 0:
            raise RefusedError(400, "invalid", f"Invalid value for field 'requestId': '{request_id}'.")
        name, at = self._requests.get(request_id, ("", 0.0))
        return self.operations[name] if name and self.clock() - at < REQUEST_ID_KEPT_S else None

    def _begin(self, kind: str, machine: Machine, takes_s: float, request_id: str) -> Operation:
        operation = Operation(
            next(self._ids), kind, machine.zone, machine.name, machine.id, self.clock(), takes_s, request_id
        )
        self.operations[operation.name] = operation
        if request_id:
            self._requests[request_id] = (operation.name, self.clock())
        return operation

    def _trouble(self, zone: str, body: dict[str, Any]) -> tuple[dict[str, Any] | None, int]:
        used, allowed = self.usage()["INSTANCES"]
        metric, amount = self._counted(zone, body)
        counted = {ALL_GPUS: (self.usage_everywhere(), GPUS.get(_kind(body), 0), "globally")}
        if ZONES[zone] == REGION:
            counted[metric] = self.usage(), amount, f"in region {REGION}"
        for name, (usage, more, place) in counted.items():
            before, most = usage.get(name, (0.0, math.inf))
            if more and before + more > most:
                raise RefusedError(403, "quotaExceeded", f"Quota '{name}' exceeded.  Limit: {most} {place}.")
        if self.breaks:
            code, status = self.breaks.pop(0)
            return {"errors": [{"code": code, "message": f"It did not work: {code}."}]}, status
        if ZONES[zone] == REGION and used >= allowed:
            message = f"Quota 'INSTANCES' exceeded.  Limit: {allowed} in region {REGION}."
            if not self.quota_late:
                raise RefusedError(403, "quotaExceeded", message)
            info = {
                "metricName": "compute.googleapis.com/instances",
                "limitName": "INSTANCES-per-project-region",
                "dimensions": {"region": REGION},
                "limit": allowed,
            }
            detail = {"quotaInfo": info}
            return {
                "errors": [{"code": "QUOTA_EXCEEDED", "message": "Too many.", "errorDetails": [detail]}]
            }, 403
        if zone in self.stock_out:
            message = (
                f"The zone 'projects/{PROJECT}/zones/{zone}' does not have enough resources available to "
                "fulfill the request.  Try a different zone, or try again later."
            )
            return {"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": message}]}, 503
        return None, 0

    # How things look

    def show_operation(self, operation: Operation) -> dict[str, Any]:
        age = self.clock() - operation.created_at
        zone = f"{ROOT}/projects/{PROJECT}/zones/{operation.zone}"
        shown: dict[str, Any] = {
            "kind": "compute#operation",
            "id": str(operation.id),
            "name": operation.name,
            "zone": zone,
            "operationType": operation.kind,
            "targetLink": f"{zone}/instances/{operation.target}",
            "targetId": str(operation.target_id),
            "status": "PENDING" if age < self.starts_after_s else "RUNNING",
            "progress": 0,
            "insertTime": stamp(operation.created_at),
            "user": "somebody@example.com",
            "selfLink": f"{zone}/operations/{operation.name}",
        }
        if operation.request_id:
            shown["clientOperationId"] = operation.request_id
        if age >= operation.takes_s:
            end = stamp(operation.created_at + operation.takes_s)
            shown |= {"status": "DONE", "progress": 100, "endTime": end}
            if operation.error is not None:
                shown |= {
                    "error": operation.error,
                    "httpErrorStatusCode": operation.status,
                    "httpErrorMessage": "FAILED",
                }
        return shown

    def show_machine(self, machine: Machine) -> dict[str, Any]:
        now = self.clock()
        status = "RUNNING"
        if now >= machine.ends_at:
            status = "STOPPING"
        elif now < machine.up_at:
            acquired = now >= machine.created_at + self.starts_after_s and machine.ends_at > machine.up_at
            status = "STAGING" if acquired else "PROVISIONING"
        elif machine.off_at is not None:
            status = "TERMINATED"
        zone = f"{ROOT}/projects/{PROJECT}/zones/{machine.zone}"
        body = machine.body
        kind = body["machineType"].rpartition("/")[2]
        disk = {"boot": True, "autoDelete": True, "index": 0, "source": f"{zone}/disks/{machine.name}"}
        address = {"networkIP": machine.address} if status != "PROVISIONING" else {}
        shown = {
            **body,
            "kind": "compute#instance",
            "id": str(machine.id),
            "name": machine.name,
            "zone": zone,
            "machineType": f"{zone}/machineTypes/{kind}",
            "status": status,
            "creationTimestamp": stamp(machine.created_at),
            "disks": [disk],
            "networkInterfaces": [body.get("networkInterfaces", [{}])[0] | {"name": "nic0"} | address],
        }
        if status == "RUNNING":
            interface = shown["networkInterfaces"][0]
            interface["accessConfigs"] = [
                {**one, "natIP": self.public_address(machine)} for one in interface.get("accessConfigs", ())
            ]
        if status == "STOPPING" and machine.reason:
            shown["statusMessage"] = machine.reason
        if machine.off_at is not None:
            shown["lastStopTimestamp"] = stamp(machine.off_at)
        return shown


def _allow_ssh() -> dict[str, Any]:
    """What the default network of a project begins with."""
    return {
        "name": "default-allow-ssh",
        "network": f"{ROOT}/projects/{PROJECT}/global/networks/default",
        "direction": "INGRESS",
        "priority": 65534,
        "sourceRanges": ["0.0.0.0/0"],
        "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
    }


def check_firewall(body: dict[str, Any]) -> None:
    """What the schema does not say and Compute Engine refuses all the same."""
    for condition, name in (
        (re.fullmatch(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", body.get("name", "")), "name"),
        (0 <= int(body.get("priority", 1000)) <= 65535, "priority"),
        (bool(body.get("allowed")) != bool(body.get("denied")), "allowed"),
        (body.get("sourceRanges") and all(_is_network(one) for one in body["sourceRanges"]), "sourceRanges"),
        (all(re.fullmatch(r"[a-z][-a-z0-9]{0,62}", one) for one in body.get("targetTags", ())), "targetTags"),
    ):
        if not condition:
            raise RefusedError(
                400, "invalid", f"Invalid value for field 'resource.{name}': not as it must be."
            )


def _is_network(text: str) -> bool:
    try:
        return str(ip_network(text)) == text
    except ValueError:
        return False


def stamp(at: float) -> str:
    return (EPOCH + timedelta(seconds=at)).astimezone(_ABROAD).isoformat(timespec="milliseconds")


def _kind(body: dict[str, Any]) -> str:
    return str(body["machineType"]).rpartition("/")[2]


def _is_spot(body: dict[str, Any]) -> bool:
    return bool(body.get("scheduling", {}).get("provisioningModel") == "SPOT")


def shape(kind: str, zone: str) -> tuple[int, int]:
    """Processors and MiB of a machine type.

    Raises:
        RefusedError: If the zone has none of its name.
    """
    if found := re.fullmatch(r"(?:e2|n2)-custom-(\d+)-(\d+)", kind):
        cpus, memory = int(found[1]), int(found[2])
        if cpus % 2 or not 2 <= cpus <= 32 or memory % 256 or not cpus * 512 <= memory <= cpus * 8192:
            raise RefusedError(400, "invalid", f"Invalid value for field 'machineType': '{kind}'.")
        return cpus, memory
    if kind not in TYPES or (kind, zone) in NOT_IN:
        place = f"projects/{PROJECT}/zones/{zone}/machineTypes/{kind}"
        raise RefusedError(404, "notFound", f"The resource '{place}' was not found")
    return TYPES[kind]


def check_instance(zone: str, body: dict[str, Any]) -> None:
    """What the schema does not say and Compute Engine refuses all the same."""

    def need(condition: object, name: str) -> None:
        if not condition:
            raise RefusedError(
                400, "invalid", f"Invalid value for field 'resource.{name}': not as it must be."
            )

    need(re.fullmatch(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", body.get("name", "")), "name")
    link = re.fullmatch(r"(?:.*/)?zones/([^/]+)/machineTypes/([^/]+)", body.get("machineType", ""))
    need(link and link[1] == zone, "machineType")
    assert link is not None
    try:
        shape(link[2], zone)
    except RefusedError as error:  # the missing thing is not the one asked for
        raise RefusedError(400, "invalid", error.message) from error
    for labels in (body.get("labels", {}), body["disks"][0]["initializeParams"].get("labels", {})):
        need(len(labels) <= 64, "labels")
        for key, value in labels.items():
            need(re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key), "labels")
            need(re.fullmatch(r"[a-z0-9_-]{0,63}", value), "labels")
    need(len(body.get("disks", [])) == 1 and body["disks"][0].get("boot"), "disks")
    disk = body["disks"][0]["initializeParams"]
    need(re.fullmatch(r"projects/[a-z0-9-]+/global/images/.+", disk.get("sourceImage", "")), "disks")
    need(int(disk["diskSizeGb"]) >= 10, "disks")
    need(body.get("networkInterfaces"), "networkInterfaces")
    scheduling = body.get("scheduling", {})
    need(not GPUS.get(link[2]) or scheduling.get("onHostMaintenance") == "TERMINATE", "scheduling")
    check_scheduling(scheduling, need)


def check_scheduling(scheduling: dict[str, Any], need: Callable[[object, str], None]) -> None:
    spot = scheduling.get("provisioningModel") == "SPOT"
    limit = scheduling.get("maxRunDuration")
    if limit is not None:
        need(30 <= int(limit["seconds"]) <= 10_368_000, "scheduling.maxRunDuration")
        need(scheduling.get("instanceTerminationAction"), "scheduling.instanceTerminationAction")
    if spot:
        need(scheduling.get("automaticRestart") is False, "scheduling.automaticRestart")
        need(scheduling.get("onHostMaintenance", "TERMINATE") == "TERMINATE", "scheduling")
    need(spot or "preemptionNoticeDuration" not in scheduling, "scheduling.preemptionNoticeDuration")
