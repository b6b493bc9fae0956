"""Compute Engine on a port of this machine, held to Google's own description, for the real client library to ask."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from gcp_discovery import Discovery, RefusedError
from gcp_state import PROJECT, ROOT, TYPES, ZONES, Project, shape

_PREFIX = "compute."
IMAGES = {
    "ubuntu-os-cloud": ("ubuntu-2404-noble-amd64-v20260101", "ubuntu-2404-lts-amd64-v20260201"),
    "ubuntu-os-accelerator-images": ("ubuntu-accelerator-2404-amd64-with-nvidia-580-v20260201",),
}
"""Public images, by their projects."""
_HTTP_TIMEOUT_S = 30.0
OPERATIONS_KEPT_S = 14 * 86_400.0


class _LostError(Exception):
    """The connection ends without an answer."""


_PERMISSIONS: Mapping[str, tuple[str, ...]] = {
    "compute.firewalls.delete": ("compute.firewalls.delete", "compute.networks.updatePolicy"),
    "compute.firewalls.insert": ("compute.firewalls.create", "compute.networks.updatePolicy"),
    "compute.firewalls.patch": ("compute.firewalls.update", "compute.networks.updatePolicy"),
    "compute.disks.aggregatedList": ("compute.disks.list",),
    "compute.instances.aggregatedList": ("compute.instances.list",),
    "compute.instances.insert": (
        "compute.disks.create",
        "compute.images.useReadOnly",
        "compute.instances.create",
        "compute.subnetworks.use",
    ),
}
"""Of methods that do not need the permission of their own name alone; from the reference of each method."""


def permissions_of(method: str, body: Any) -> Iterator[str]:
    """The permissions that a call needs."""
    yield from _PERMISSIONS.get(method, (method,))
    if method != "compute.instances.insert":
        return
    interface = next(iter(body.get("networkInterfaces", ())), {})
    disk = next(iter(body.get("disks", ())), {}).get("initializeParams", {})
    needs = {
        "compute.instances.setLabels": body.get("labels"),
        "compute.instances.setMetadata": body.get("metadata"),
        "compute.instances.setTags": body.get("tags"),
        "compute.instances.setServiceAccount": body.get("serviceAccounts"),
        "compute.disks.setLabels": disk.get("labels"),
        "compute.subnetworks.useExternalIp": interface.get("accessConfigs"),
        "compute.networks.use": interface.get("network"),
        "compute.networks.useExternalIp": interface.get("network") and interface.get("accessConfigs"),
    }
    yield from (permission for permission, needed in needs.items() if needed)


def _role() -> frozenset[str]:
    """The permissions of the role that the documentation tells to make."""
    text = resources.files("scavenger.cloud.policies").joinpath("gcp.yaml").read_text()
    return frozenset(re.findall(r"^- (\S+)$", text, re.MULTILINE))


ROLE = _role()


@dataclass
class Faults:
    """What goes wrong with the next calls, and with which.

    Attributes:
        planned: What is to happen, how often, and to which methods; none named: to every one.
        denied: Whether nothing is allowed.
        fired: How many calls met a fault.
        let_go: Ends the calls that hang.
    """

    planned: list[tuple[str, int, frozenset[str]]] = field(default_factory=list)
    denied: bool = False
    fired: int = 0
    let_go: threading.Event = field(default_factory=threading.Event)

    def plan(self, kind: str, calls: int, *methods: str) -> None:
        """`throttle`, `fail`, `deny`, `lose`, `hang`, `proxy` or `garble`; 0 calls end what was planned of the kind."""
        self.planned = [each for each in self.planned if each[0] != kind]
        if calls:
            self.planned.append((kind, calls, frozenset(_PREFIX + each for each in methods)))

    def next(self, method: str) -> str:
        if self.denied:
            self.fired += 1
            return "deny"
        for index, (kind, calls, methods) in enumerate(self.planned):
            if method in (methods or {method}):
                self.planned[index : index + 1] = [(kind, calls - 1, methods)] if calls > 1 else []
                self.fired += 1
                return kind
        return ""


class ComputeServer:
    """The server; `with` starts and ends it.

    Attributes:
        calls: How often each method was asked for.
        requests: Every body that was accepted, with its method.
        faults_of_ours: Answers that Google could not have given; must stay empty.
        unreachable: Zones that nothing can be said of.
        endless: Whether a list always has another page.
        forbidden: Permissions that the caller lacks, where it asks for its permissions.
        subnetworks: Names of the region's subnetworks, with their networks.
        more_types: Machine types that every zone lists besides those that can be started.
        on_call: Called at each call.
    """

    def __init__(self, clock: Callable[[], float], *, page_max: int = 5, host: str = "127.0.0.1") -> None:
        self.page_max = page_max
        self.faults = Faults()
        self.reset(clock)
        self._handlers: dict[str, Callable[[dict[str, str], Any], dict[str, Any]]] = {
            "compute.instances.insert": self._insert,
            "compute.instances.get": self._get,
            "compute.instances.delete": self._delete,
            "compute.instances.getSerialPortOutput": self._serial_port,
            "compute.instances.aggregatedList": self._list_instances,
            "compute.zoneOperations.get": self._operation,
            "compute.zoneOperations.list": self._operations,
            "compute.images.get": self._image,
            "compute.images.getFromFamily": self._image,
            "compute.subnetworks.list": self._subnetworks,
            "compute.machineTypes.get": self._machine_type,
            "compute.machineTypes.list": self._machine_types,
            "compute.zones.list": self._zones,
            "compute.projects.get": self._project,
            "compute.regions.get": self._region,
            "compute.disks.aggregatedList": self._list_disks,
            "compute.disks.delete": self._delete_disk,
            "compute.firewalls.get": self._get_firewall,
            "compute.firewalls.insert": self._insert_firewall,
            "compute.firewalls.patch": self._patch_firewall,
            "compute.firewalls.delete": self._delete_firewall,
            "compute.globalOperations.get": self._global_operation,
        }
        self._discovery = Discovery(frozenset(self._handlers))
        server = self

        class Handler(_Handler):
            compute = server

        self._http = ThreadingHTTPServer((host, 0), Handler)
        self._http.daemon_threads = True
        self.endpoint = f"http://{host}:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))

    def reset(self, clock: Callable[[], float]) -> None:
        """An empty project without faults; the same port, so that a module's tests need one description."""
        self.faults.let_go.set()
        self.project, self.faults, self._clock = self._new_project(clock), Faults(), clock
        self.calls: Counter[str] = Counter()
        self.requests: list[tuple[str, Any]] = []
        self.faults_of_ours: list[str] = []
        self.unreachable: set[str] = set()
        self.endless = False
        self.forbidden: set[str] = set()
        self.subnetworks = {"default": "default"}
        self.more_types: list[dict[str, Any]] = []
        self.on_call: Callable[[], object] = lambda: None

    def _new_project(self, clock: Callable[[], float]) -> Project:
        return Project(clock)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.faults.let_go.set()
        self._http.shutdown()
        self._thread.join(_HTTP_TIMEOUT_S)
        self._http.server_close()

    def answer(self, verb: str, target: str, body: bytes) -> tuple[int, str, bytes]:
        """Status, content type and body of one call.

        Raises:
            _LostError: If there is to be no answer.
        """
        try:
            return 200, "application/json; charset=UTF-8", json.dumps(self._done(verb, target, body)).encode()
        except RefusedError as error:
            return error.status, "application/json; charset=UTF-8", json.dumps(error.body()).encode()
        except _PageError as page:
            return page.status, "text/html", page.text

    def _done(self, verb: str, target: str, body: bytes) -> dict[str, Any]:
        parts = urlsplit(target)
        if parts.path.endswith(":testIamPermissions") and verb == "POST":
            return self._tested(parts.path, body)
        method, path = self._discovery.route(verb, parts.path)
        with self.project.lock:
            fault = self.faults.next(method["id"])
            self.calls[method["id"].removeprefix(_PREFIX)] += 1
        self.on_call()
        if fault == "hang":
            self.faults.let_go.wait(_HTTP_TIMEOUT_S)
            raise _LostError
        _fail(fault, self.faults.fired)
        query = parse_qs(parts.query, keep_blank_values=True)
        parameters = self._discovery.check_parameters(method, query) | path
        if parameters["project"] not in (PROJECT, *IMAGES):
            raise RefusedError(
                404, "notFound", f"The resource 'projects/{parameters['project']}' was not found"
            )
        if parameters.get("zone", "us-central1-a") not in ZONES:
            place = f"projects/{PROJECT}/zones/{parameters['zone']}"
            raise RefusedError(404, "notFound", f"The resource '{place}' was not found")
        value = self._body(method, body)
        for permission in permissions_of(method["id"], value):
            if permission not in ROLE:
                raise RefusedError(
                    403, "forbidden", f"Required '{permission}' permission for 'projects/{PROJECT}'"
                )
        with self.project.lock:
            reply = self._handlers[method["id"]](parameters, value)
        try:
            self._discovery.check_named(method["response"]["$ref"], reply, answer=True)
        except RefusedError as error:
            self.faults_of_ours.append(error.message)
        if fault == "lose":
            raise _LostError
        return reply

    def _body(self, method: dict[str, Any], body: bytes) -> Any:
        if "request" not in method:
            if body:
                raise RefusedError(400, "badRequest", "Unexpected body.")
            return None
        value = json.loads(body)
        self._discovery.check_named(method["request"]["$ref"], value, answer=False)
        self.requests.append((method["id"].removeprefix(_PREFIX), value))
        return value

    # Methods

    def _insert(self, parameters: dict[str, str], body: Any) -> dict[str, Any]:
        project = self.project
        return project.show_operation(
            project.insert(parameters["zone"], body, parameters.get("requestId", ""))
        )

    def _get(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        machine = self.project.find(parameters["zone"], parameters["instance"])
        return self.project.show_machine(machine)

    def _serial_port(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        machine = self.project.find(parameters["zone"], parameters["instance"])
        text = self.project.console(machine).encode()[-(1 << 20) :]
        start = int(parameters.get("start", "0"))
        start = max(0, len(text) + start) if start < 0 else start
        place = f"{ROOT}/projects/{PROJECT}/zones/{machine.zone}/instances/{machine.name}"
        return {
            "kind": "compute#serialPortOutput",
            "selfLink": f"{place}/serialPort",
            "contents": text[start:].decode(errors="replace"),
            "start": str(start),
            "next": str(len(text)),
        }

    def _delete(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        project = self.project
        operation = project.delete(
            parameters["zone"], parameters["instance"], parameters.get("requestId", "")
        )
        return project.show_operation(operation)

    def _list_instances(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        found = [
            (each.zone, self.project.show_machine(each))
            for each in self.project.alive()
            if self._is_listed(each.created_at)
        ]
        return self._aggregated(parameters, found, "instances")

    def _list_disks(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        users = {each.name: each for each in self.project.alive()}
        found = []
        for name, (zone, labels) in self.project.disks.items():
            place = f"{ROOT}/projects/{PROJECT}/zones/{zone}"
            disk = {"name": name, "labels": labels, "selfLink": f"{place}/disks/{name}", "sizeGb": "20"}
            if name in users and self._clock() >= users[name].up_at:
                disk["users"] = [f"{place}/instances/{name}"]
            if name in users or self.project.leaves_disk:
                found.append((zone, disk))
        return self._aggregated(parameters, found, "disks")

    def _delete_disk(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        name, zone = parameters["disk"], parameters["zone"]
        place = f"projects/{PROJECT}/zones/{zone}/disks/{name}"
        if any(each.name == name for each in self.project.alive()):
            raise RefusedError(400, "resourceInUseByAnotherResource", f"The disk resource '{place}' is used")
        if self.project.disks.pop(name, None) is None:
            raise RefusedError(404, "notFound", f"The resource '{place}' was not found")
        return {"kind": "compute#operation", "name": "operation-disk", "status": "RUNNING"}

    def _get_firewall(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        return {"kind": "compute#firewall", **self.project.firewall(parameters["firewall"])}

    def _insert_firewall(self, parameters: dict[str, str], body: Any) -> dict[str, Any]:
        return self.project.insert_firewall(body)

    def _patch_firewall(self, parameters: dict[str, str], body: Any) -> dict[str, Any]:
        return self.project.patch_firewall(parameters["firewall"], body)

    def _delete_firewall(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        return self.project.delete_firewall(parameters["firewall"])

    def _global_operation(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        return self.project.global_operation(parameters["operation"])

    def _operation(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        operation = self.project.operations.get(parameters["operation"])
        if operation is None or operation.zone != parameters["zone"]:
            place = f"projects/{PROJECT}/zones/{parameters['zone']}/operations/{parameters['operation']}"
            raise RefusedError(404, "notFound", f"The resource '{place}' was not found")
        return self.project.show_operation(operation)

    def _operations(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        found = [
            self.project.show_operation(each)
            for each in self.project.operations.values()
            if each.zone == parameters["zone"] and self._is_listed(each.created_at)
            if self.project.clock() - each.created_at < OPERATIONS_KEPT_S
        ]
        found.sort(key=lambda each: each["name"], reverse=True)
        return self._listed(parameters, found)

    def _image(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        project, family = parameters["project"], parameters.get("family", "")
        name = parameters.get("image", "")
        found = [one for one in IMAGES.get(project, ()) if one == name or (family and one.startswith(family))]
        if not found:
            kind = f"family/{family}" if family else name
            place = f"projects/{project}/global/images/{kind}"
            raise RefusedError(404, "notFound", f"The resource '{place}' was not found")
        return {"kind": "compute#image", "name": found[-1], "family": family, "status": "READY"}

    def _subnetworks(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        region = parameters["region"]
        place = f"{ROOT}/projects/{PROJECT}"
        found = [
            {
                "kind": "compute#subnetwork",
                "name": name,
                "network": f"{place}/global/networks/{network}",
                "region": f"{place}/regions/{region}",
            }
            for name, network in self.subnetworks.items()
        ]
        return self._listed(parameters, found)

    def _tested(self, path: str, body: bytes) -> dict[str, Any]:
        """`testIamPermissions` of the Resource Manager: those of the permissions asked for that the caller has."""
        if self.faults.denied:
            raise RefusedError(403, "forbidden", "The caller does not have permission")
        if path != f"/v1/projects/{PROJECT}:testIamPermissions":
            raise RefusedError(403, "forbidden", "The caller does not have permission")
        asked = json.loads(body)["permissions"]
        granted = [one for one in asked if one not in self.forbidden]
        return {"permissions": granted} if granted else {}

    def _machine_type(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        return _machine_type(parameters["machineType"], parameters["zone"])

    def _machine_types(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        found = list(self.more_types)
        for name in TYPES:
            try:
                found.append(_machine_type(name, parameters["zone"]))
            except RefusedError:
                continue
        return self._listed(parameters, found)

    def _zones(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        regions = f"{ROOT}/projects/{PROJECT}/regions"
        found = [
            {
                "kind": "compute#zone",
                "name": zone,
                "region": f"{regions}/{region}",
                "status": "DOWN" if zone in self.unreachable else "UP",
            }
            for zone, region in ZONES.items()
        ]
        return self._listed(parameters, found)

    def _region(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        name = parameters["region"]
        if name not in ZONES.values():
            raise RefusedError(
                404, "notFound", f"The resource 'projects/{PROJECT}/regions/{name}' was not found"
            )
        return {
            "kind": "compute#region",
            "name": name,
            "status": "UP",
            "zones": [f"{ROOT}/projects/{PROJECT}/zones/{zone}" for zone in ZONES if ZONES[zone] == name],
            "quotas": _quotas(self.project.usage()),
        }

    def _project(self, parameters: dict[str, str], _: Any) -> dict[str, Any]:
        return {
            "kind": "compute#project",
            "name": parameters["project"],
            "quotas": _quotas(self.project.usage_everywhere()),
        }

    # Lists

    def _is_listed(self, created_at: float) -> bool:
        return self._clock() - created_at >= self.project.hidden_s

    def _page(self, parameters: dict[str, str], found: list[Any]) -> tuple[list[Any], dict[str, str]]:
        start = int(parameters.get("pageToken", "0"))
        size = min(int(parameters.get("maxResults", "500")), self.page_max)
        more = {"nextPageToken": str(start + size)} if start + size < len(found) or self.endless else {}
        return found[start : start + size], more

    def _listed(self, parameters: dict[str, str], found: list[dict[str, Any]]) -> dict[str, Any]:
        keep = _filter(parameters.get("filter", ""))
        items, more = self._page(parameters, [each for each in found if keep(each)])
        return {"items": items} | more if items else more

    def _aggregated(
        self, parameters: dict[str, str], found: list[tuple[str, dict[str, Any]]], name: str
    ) -> dict[str, Any]:
        keep = _filter(parameters.get("filter", ""))
        kept = [each for each in found if keep(each[1]) and each[0] not in self.unreachable]
        page, more = self._page(parameters, kept)
        items: dict[str, Any] = {}
        for zone in ZONES:
            here = [each for place, each in page if place == zone]
            code = "UNREACHABLE" if zone in self.unreachable else "NO_RESULTS_ON_PAGE"
            items[f"zones/{zone}"] = (
                {name: here} if here else {"warning": {"code": code, "message": "There is nothing."}}
            )
        return {"items": items} | more


class _Handler(BaseHTTPRequestHandler):
    compute: ComputeServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = _HTTP_TIMEOUT_S

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            status, kind, content = self.compute.answer(self.command, self.path, body)
        except _LostError:
            self.close_connection = True
            return
        head = f"HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
        self.wfile.write(head.encode() + content)

    do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 - names of http.server

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _PageError(Exception):
    """In place of an answer, something that is none."""

    def __init__(self, status: int, text: bytes) -> None:
        super().__init__(status)
        self.status, self.text = status, text


def _fail(fault: str, count: int) -> None:
    """Each fault in the forms that Google gives it, one after another."""
    even = count % 2 == 0
    if fault == "throttle":
        status, reason = (403, "rateLimitExceeded") if even else (429, "rateLimitExceeded")
        raise RefusedError(
            status, reason, "Quota exceeded for quota metric 'Queries' and limit 'per minute'."
        )
    if fault == "deny":
        if even:
            raise RefusedError(401, "authError", "Request had invalid authentication credentials.")
        raise RefusedError(403, "forbidden", f"Required permission for 'projects/{PROJECT}'")
    if fault == "fail":
        if even:
            raise _PageError(502, b"<!DOCTYPE html>\n<html><title>Error 502</title>\n</html>")
        raise RefusedError(503, "backendError", "Internal error. Please try again or contact Google Support.")
    if fault == "proxy":
        raise _PageError(404, b"<html>The requested URL /compute/v1/x/instances/1 was not found</html>")
    if fault == "garble":
        raise _PageError(200, b'{"items": [')


def _quotas(usage: Mapping[str, tuple[float, float]]) -> list[dict[str, Any]]:
    return [{"metric": metric, "limit": limit, "usage": used} for metric, (used, limit) in usage.items()]


def _machine_type(name: str, zone: str) -> dict[str, Any]:
    cpus, memory = shape(name, zone)
    return {"kind": "compute#machineType", "name": name, "guestCpus": cpus, "memoryMb": memory}


def _filter(text: str) -> Callable[[dict[str, Any]], bool]:
    """The two forms of Google's filters: a value that is equal, or a regular expression for the whole of it."""
    if not text:
        return lambda each: True
    found = re.fullmatch(r'([\w.-]+) (=|eq) "([^"]*)"', text)
    if found is not None:
        path, kind, wanted = found.groups()
        if kind == "=":
            return lambda each: _field(each, path) == wanted
        return lambda each: re.fullmatch(wanted, _field(each, path)) is not None
    raise RefusedError(
        400, "invalid", f"Invalid value for field 'filter': '{text}'. Invalid list filter expression."
    )


def _field(value: Any, path: str) -> str:
    for name in path.split("."):
        value = value.get(name, {}) if isinstance(value, dict) else {}
    return value if isinstance(value, str) else ""
