"""Compute Engine of Google Cloud as a provider, through Google's own client library over REST.

A launch is one insert. Its idempotency key and the VM's name both come from the token, so that a repeat finds
the first: by the key while Google remembers it, by the name while the VM lives, and by the zone's operations, which are
kept for weeks, after that. A VM is known by its number, which is never given twice.

Operations are followed with the client of the zone's operations at the same endpoint: the library's own `result()` asks
Google's public one whatever endpoint was set. An insert that was accepted is followed until it is over, whatever else
fails meanwhile, since only its end says whether there is a VM.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import google.auth
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import Conflict, Forbidden, NotFound
from google.api_core.gapic_v1.client_info import ClientInfo
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

from scavenger.cloud.base import CONSOLE_CHARACTERS
from scavenger.cloud.gcp.errors import is_missing, is_taken, of_operation, translated_errors
from scavenger.cloud.gcp.logins import LoginRules
from scavenger.cloud.gcp.names import (
    ALL_GPUS,
    ENDPOINT_VARIABLE,
    custom_type,
    instance_name,
    leader_filter,
    owner_filter,
    request_id,
    spot_quota,
    tags_of,
)
from scavenger.cloud.gcp.vm import GcpInstallation, instance_of, seen_of, time_of
from scavenger.domain.vm import DEFAULT_SETTINGS, Quota, VmRequest, VmSeen, VmSettings
from scavenger.errors import (
    CloudUnavailableError,
    ConfigurationError,
    CredentialsError,
    GoneError,
    ScavengerError,
    ThrottledError,
)
from scavenger.version import __version__

__all__ = ["ENDPOINT_VARIABLE", "GcpProvider"]

VISIBILITY_S = 60.0
"""Google names no bound. Longer than lists have been seen to lag; a sweep that waits for it costs a minute of a VM."""

COMPUTE = "https://compute.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_PAGE = 500  # the most that Compute Engine gives at once
_POLL_FIRST_S, _POLL_MAX_S, _POLL_GROWTH = 1.0, 5.0, 1.5
"""Inserts take some 10 s, and a project may read 25 times a second for all of its jobs."""

_NOTICE = re.compile(r"preemption.?notice", re.IGNORECASE)
"""In a refusal of `scheduling.preemptionNoticeDuration`."""
_ENDS = r"delete|compute\.instances\.(preempted|guestTerminate)"
"""Operations after which a VM is not paid for; its disk is until it is deleted."""
_QUOTAS = re.compile(r"(?!COMMITTED_)(\w+_)?(CPUS|GPUS)|INSTANCES|(DISKS|SSD|HDB)_TOTAL_GB|IN_USE_ADDRESSES")


class GcpProvider:
    """See `Provider`.

    Args:
        project: Its id.
        region: `us-central1`, ...
        settings: What all VMs share.
        environment: Where `SCAVENGER_GCP_ENDPOINT` is looked up.
        clock, sleep: Seconds; a clock that is never set back.
        call_timeout_s: How long to wait for a connection, and for each piece of an answer.
        operation_timeout_s: How long a launch, or a list of many pages, may take in all.

    Attributes:
        endpoint: Where to ask in Google's place; empty for Google.
    """

    name = "gcp"
    visibility_s = VISIBILITY_S
    remembers_s = 0.0  # a VM that was deleted is not listed any more

    def __init__(
        self,
        project: str,
        region: str,
        *,
        settings: GcpInstallation | None = None,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        call_timeout_s: float = 30.0,
        operation_timeout_s: float = 300.0,
    ) -> None:
        self.region = region
        self.project = project
        self.settings = settings or GcpInstallation()
        self.endpoint = environment.get(ENDPOINT_VARIABLE, "")
        self._clock, self._sleep = clock, sleep
        self._call_timeout_s, self._operation_timeout_s = call_timeout_s, operation_timeout_s
        self._without_notice: set[str] = set()  # machine families

    def zones(self, vm: str, settings: VmSettings = DEFAULT_SETTINGS) -> tuple[str, ...]:
        """See `Provider.zones`: by name, those that are up."""
        custom_type(vm)
        deadline = self._deadline()
        found = []
        with self._told(f"looking for {vm}", self.region, refused=ConfigurationError):
            zones = self._zones.list(
                request=compute_v1.ListZonesRequest(project=self.project, max_results=_PAGE),
                **self._limits(deadline),
            )
            names = [
                zone.name
                for page in self._pages(zones, deadline)
                for zone in page.items
                if zone.region.rpartition("/")[2] == self.region and zone.status == "UP"
            ]
            for zone in sorted(names):
                try:
                    kind = self._machine_types.get(
                        request=compute_v1.GetMachineTypeRequest(
                            project=self.project, zone=zone, machine_type=vm
                        ),
                        **self._limits(deadline),
                    )
                except NotFound as error:
                    if not is_missing(error, "machineTypes"):
                        raise
                    continue
                if kind.deprecated.state not in ("OBSOLETE", "DELETED"):
                    found.append(zone)
        if not names:
            raise ConfigurationError(f"Google Cloud has no region {self.region!r} with a zone that is up")
        if not found:
            raise ConfigurationError(f"no zone of {self.region} has the machine type {vm!r}")
        return tuple(found)

    def launch(self, request: VmRequest) -> VmSeen:
        """See `Provider.launch`: returns once the insert is done, so that stock and quota have been asked.

        A machine family that takes no time of notice for its spot VMs is asked again without it.
        """
        family = request.vm.partition("-")[0]
        if request.spot and self.settings.preemption_notice_s and family not in self._without_notice:
            try:
                return self._launch(request, self.settings)
            except ConfigurationError as error:
                if _NOTICE.search(f"{error} {error.__cause__}") is None:
                    raise
            self._without_notice.add(family)
        return self._launch(request, replace(self.settings, preemption_notice_s=0))

    def _launch(self, request: VmRequest, settings: GcpInstallation) -> VmSeen:
        body = instance_of(request, settings)
        if request.template.settings.logins_from:
            self.let_in(request)
        variant = "without notice" if request.spot and not settings.preemption_notice_s else ""
        deadline = self._deadline()
        doing = f"starting a {request.vm}"
        inserts = self._inserts(body.name, request.zone, deadline)
        operation = inserts[-1] if inserts else None
        if operation is None or _has_failed(operation):
            with self._told(doing, request.zone, refused=ConfigurationError):
                try:
                    operation = self._instances.insert_unary(
                        request=compute_v1.InsertInstanceRequest(
                            project=self.project,
                            zone=request.zone,
                            instance_resource=body,
                            request_id=request_id(request.tags.token, len(inserts), variant),
                        ),
                        **self._limits(deadline),
                    )
                except Conflict as error:
                    if not any(each.get("reason") == "alreadyExists" for each in error.errors):
                        raise
                    operation = None
        try:
            if operation is not None:
                operation = self._followed(operation, request.zone, deadline)
            if operation is None or is_taken(operation):
                return self._adopted(request, body.name, deadline)
            if not _has_failed(operation):
                return self._seen(str(operation.target_id), request.zone, deadline)
        except (CredentialsError, ThrottledError) as error:
            raise CloudUnavailableError(f"a VM may have been started; {error}") from error
        raise of_operation(operation, doing=doing, region=self.region, location=request.zone)

    def describe(self, instance_id: str, zone: str) -> VmSeen:
        """See `Provider.describe`; Compute Engine forgets a VM as soon as it is deleted, and its end later."""
        deadline = self._deadline()
        try:
            return self._seen(instance_id, zone, deadline)
        except GoneError:
            ends: list[datetime] = []
            with suppress(ScavengerError):
                ends = self._ends_of(instance_id, zone, deadline)
            if not ends:
                raise
            ended_at, deleted_at = min(ends), max(ends)
            return VmSeen(
                instance_id,
                "",
                zone,
                False,
                "gone",
                ended_at=ended_at,
                reason="it was deleted",
                disk_after_s=(deleted_at - ended_at).total_seconds(),
            )

    def terminate(self, instance_id: str, zone: str) -> None:
        """See `Provider.terminate`: the VM's disk goes with it."""
        try:
            with self._told(f"ending VM {instance_id}", zone):
                self._instances.delete_unary(
                    request=compute_v1.DeleteInstanceRequest(
                        project=self.project, zone=zone, instance=instance_id
                    ),
                    **self._limits(self._deadline()),
                )
        except GoneError:
            return

    def list_owned(self, owner: str) -> tuple[VmSeen, ...]:
        """See `Provider.list_owned`; a zone that cannot be reached makes the whole list unknown."""
        with self._told("listing VMs", self.region):
            return tuple(
                seen_of(instance, zone)
                for zone, scope in self._scopes(
                    self._instances, compute_v1.AggregatedListInstancesRequest, owner_filter(owner)
                )
                for instance in scope.instances
            )

    def list_leaders(self) -> tuple[VmSeen, ...]:
        with self._told("listing leaders' VMs", self.region):
            return tuple(
                seen_of(instance, zone)
                for zone, scope in self._scopes(
                    self._instances, compute_v1.AggregatedListInstancesRequest, leader_filter()
                )
                for instance in scope.instances
            )

    def console(self, instance_id: str, zone: str) -> str:
        """See `Provider.console`: live, and gone with the VM when that is deleted."""
        with self._told(f"reading the console of VM {instance_id}", zone):
            output = self._instances.get_serial_port_output(
                request=compute_v1.GetSerialPortOutputInstanceRequest(
                    project=self.project, zone=zone, instance=instance_id, port=1, start=-CONSOLE_CHARACTERS
                ),
                **self._limits(self._deadline()),
            )
        return str(output.contents)

    def quotas(self) -> tuple[Quota, ...]:
        """See `Provider.quotas`: the region's, and that of GPUs in all regions, where the project may be read."""
        deadline = self._deadline()
        with self._told("reading the quotas", self.region):
            region = self._regions.get(
                request=compute_v1.GetRegionRequest(project=self.project, region=self.region),
                **self._limits(deadline),
            )
            told = {one.metric: one for one in region.quotas if _QUOTAS.fullmatch(one.metric)}
            with suppress(Forbidden):
                project = self._projects.get(
                    request=compute_v1.GetProjectRequest(project=self.project), **self._limits(deadline)
                )
                told |= {one.metric: one for one in project.quotas if one.metric == ALL_GPUS}
        granted = {metric for metric, one in told.items() if one.limit > 0.0}
        return tuple(
            Quota(metric, self.region, one.limit, one.usage, spot_too=spot_quota(metric) not in granted)
            for metric, one in told.items()
        )

    @property
    def deletes_at(self) -> str:
        return f"{self.endpoint or COMPUTE}/compute/v1/projects/{self.project}"

    def let_in(self, request: VmRequest) -> None:
        """See `AdmittingProvider.let_in`: by firewall rules for a network tag that only these VMs have."""
        self._logins.let_in(request.tags.owner, request.template.settings)

    def impaired(self, instance_ids: Collection[str]) -> Mapping[str, str]:
        """See `Provider.impaired`: Compute Engine does not look into VMs."""
        return {}

    def spot_prices(self, vms: Collection[str]) -> Mapping[tuple[str, str], float]:
        """See `Provider.spot_prices`: they change once in thirty days at most, and only the catalogue tells them."""
        return {}

    def remove_leftovers(self, owner: str) -> tuple[str, ...]:
        """See `Provider.remove_leftovers`: firewall rules, and boot disks that VMs which failed half-way have left."""
        removed = [] if self.list_owned(owner) else list(self._logins.remove(owner))
        with self._told("removing disks", self.region):
            disks = [
                (disk.name, zone)
                for zone, scope in self._scopes(
                    self._disks, compute_v1.AggregatedListDisksRequest, owner_filter(owner)
                )
                for disk in scope.disks
                if not disk.users and disk.name == _disk_name(tags_of(disk.labels).token)
            ]
            for name, zone in disks:
                deadline = self._deadline()
                if self._exists(name, zone, deadline):  # on its way, and not yet a user of its disk
                    continue
                try:
                    self._disks.delete_unary(
                        request=compute_v1.DeleteDiskRequest(project=self.project, zone=zone, disk=name),
                        **self._limits(deadline),
                    )
                except NotFound as error:
                    if not is_missing(error, "disks"):
                        raise
                    continue
                removed.append(f"disk {name} in {zone}")
        return tuple(removed)

    def _exists(self, instance: str, zone: str, deadline: float) -> bool:
        try:
            self._seen(instance, zone, deadline)
        except GoneError:
            return False
        return True

    def _inserts(self, name: str, zone: str, deadline: float) -> list[compute_v1.Operation]:
        """Every insert of this name that the zone remembers, oldest first."""
        with self._told("looking for earlier launches", zone, refused=ConfigurationError):
            listed = self._zone_operations.list(
                request=compute_v1.ListZoneOperationsRequest(
                    project=self.project,
                    zone=zone,
                    filter=f'targetLink eq ".*/instances/{name}"',
                    max_results=_PAGE,
                ),
                **self._limits(deadline),
            )
            found = [
                operation
                for page in self._pages(listed, deadline)
                for operation in page.items
                if operation.operation_type == "insert" and operation.target_link.endswith(f"/{name}")
            ]
        return sorted(found, key=lambda operation: time_of(operation.insert_time) or _LONG_AGO)

    def _ends_of(self, instance_id: str, zone: str, deadline: float) -> list[datetime]:
        """When a VM powered itself off, was preempted and was deleted, by the cloud's clock, as the zone remembers."""
        with self._told(f"looking for the end of VM {instance_id}", zone):
            listed = self._zone_operations.list(
                request=compute_v1.ListZoneOperationsRequest(
                    project=self.project,
                    zone=zone,
                    filter=f'operationType eq "{_ENDS}"',
                    order_by="creationTimestamp desc",
                    max_results=_PAGE,
                ),
                **self._limits(deadline),
            )
            latest = next(iter(self._pages(listed, deadline)), None)
            return [
                ended_at
                for operation in (() if latest is None else latest.items)
                if str(operation.target_id) == instance_id
                if _is_done(operation) and not _has_failed(operation)
                if (ended_at := time_of(operation.end_time)) is not None
            ]

    def _followed(
        self, operation: compute_v1.Operation, zone: str, deadline: float
    ) -> compute_v1.Operation | None:
        """The insert when it is over; None where the zone has forgotten it."""
        pause_s, trouble = _POLL_FIRST_S, "it takes too long"
        while not _is_done(operation):
            if self._clock() >= deadline:
                raise CloudUnavailableError(
                    f"the start of a VM in {zone} was accepted, and its end is not known: {trouble}"
                )
            self._sleep(pause_s)
            pause_s = min(_POLL_MAX_S, pause_s * _POLL_GROWTH)
            try:
                with self._told("following the start of a VM", zone):
                    operation = self._zone_operations.get(
                        request=compute_v1.GetZoneOperationRequest(
                            project=self.project, zone=zone, operation=operation.name
                        ),
                        timeout=self._call_timeout_s,
                        retry=None,
                    )
            except (CloudUnavailableError, ThrottledError) as error:
                if is_missing(error.__cause__, "operations"):
                    return None
                trouble = str(error)
        return operation

    def _adopted(self, request: VmRequest, name: str, deadline: float) -> VmSeen:
        seen = self._seen(name, request.zone, deadline)
        if seen.tags.token != request.tags.token:
            raise ConfigurationError(f"there is a VM {name} in {request.zone} that is not Scavenger's")
        return seen

    def _seen(self, instance: str, zone: str, deadline: float) -> VmSeen:
        with self._told(f"looking at VM {instance}", zone):
            return seen_of(
                self._instances.get(
                    request=compute_v1.GetInstanceRequest(project=self.project, zone=zone, instance=instance),
                    **self._limits(deadline),
                ),
                zone,
            )

    def _scopes(self, client: Any, kind: Any, wanted: str) -> Iterator[tuple[str, Any]]:
        """The region's zones and what is there of what is wanted, page by page."""
        deadline = self._deadline()
        listed = client.aggregated_list(
            request=kind(project=self.project, filter=wanted, max_results=_PAGE),
            **self._limits(deadline),
        )
        for page in self._pages(listed, deadline):
            for scope, content in page.items.items():
                zone = scope.rpartition("/")[2]
                if zone.rpartition("-")[0] != self.region:
                    continue
                if content.warning.code == "UNREACHABLE":
                    raise CloudUnavailableError(
                        f"Google Cloud cannot reach {zone}, so nobody knows what is there"
                    )
                yield zone, content

    def _pages(self, pager: Any, deadline: float) -> Iterator[Any]:
        for page in pager.pages:
            yield page
            self._limits(deadline)

    def _deadline(self) -> float:
        return self._clock() + self._operation_timeout_s

    def _limits(self, deadline: float) -> dict[str, Any]:
        """How long the next call may take; the library's own repetitions, of up to 10 minutes, are off."""
        left_s = deadline - self._clock()
        if left_s <= 0:
            raise CloudUnavailableError(f"Google Cloud took longer than {self._operation_timeout_s:g} s")
        return {"timeout": min(self._call_timeout_s, left_s), "retry": None}

    def _told(
        self, doing: str, location: str, *, refused: type[ScavengerError] = CloudUnavailableError
    ) -> AbstractContextManager[None]:
        return translated_errors(doing, region=self.region, location=location, refused=refused)

    @cached_property
    def client_options(self) -> dict[str, Any]:
        """The arguments of every client, with the credentials."""
        options: dict[str, Any] = {
            "transport": "rest",
            "client_info": ClientInfo(  # type: ignore[no-untyped-call]
                user_agent=f"scavenger/{__version__}"
            ),
        }
        if self.endpoint:
            return options | {
                "credentials": AnonymousCredentials(),  # type: ignore[no-untyped-call]
                "client_options": ClientOptions(api_endpoint=self.endpoint),
            }
        return options | {"credentials": google.auth.default(scopes=[_SCOPE])[0]}

    @cached_property
    def _logins(self) -> LoginRules:
        return LoginRules(
            self.project,
            self.region,
            lambda: self.client_options,
            told=lambda doing: self._told(doing, self.region, refused=ConfigurationError),
            limits=self._limits,
            deadline=self._deadline,
            sleep=self._sleep,
        )

    @cached_property
    def _instances(self) -> compute_v1.InstancesClient:
        return compute_v1.InstancesClient(**self.client_options)

    @cached_property
    def _zone_operations(self) -> compute_v1.ZoneOperationsClient:
        return compute_v1.ZoneOperationsClient(**self.client_options)

    @cached_property
    def _machine_types(self) -> compute_v1.MachineTypesClient:
        return compute_v1.MachineTypesClient(**self.client_options)

    @cached_property
    def _zones(self) -> compute_v1.ZonesClient:
        return compute_v1.ZonesClient(**self.client_options)

    @cached_property
    def _projects(self) -> compute_v1.ProjectsClient:
        return compute_v1.ProjectsClient(**self.client_options)

    @cached_property
    def _regions(self) -> compute_v1.RegionsClient:
        return compute_v1.RegionsClient(**self.client_options)

    @cached_property
    def _disks(self) -> compute_v1.DisksClient:
        return compute_v1.DisksClient(**self.client_options)


_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def _is_done(operation: compute_v1.Operation) -> bool:
    return operation.status == compute_v1.Operation.Status.DONE


def _has_failed(operation: compute_v1.Operation) -> bool:
    return _is_done(operation) and (
        bool(operation.error.errors) or int(operation.http_error_status_code or 0) >= 400
    )


def _disk_name(token: str) -> str:
    """Of the boot disk, which Compute Engine names like its VM; empty for one that is not ours."""
    try:
        return instance_name(token)
    except ConfigurationError:
        return ""
