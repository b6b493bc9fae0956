"""Amazon EC2 on the loopback: moto's server, completed by what moto leaves out and a careful client stands on.

- `ClientToken`: kept by zone; the same launch again gives the first VM, other parameters `IdempotentParameterMismatch`,
  for a day after the VM ended. `replays` says how a repeat shows the VM: as it is, or as it was at first.
- Capacity, vCPU quotas and spot prices; unknown VM types refused; `MaxCount` VMs where there is room.
- States in time: pending, running, shutting-down, terminated, forgotten; VMs that are not found at first.
- The time limit of a VM: its user data is read as cloud-init would read it, and shutting down ends or stops the VM as
  it was launched to.
- Dry runs, which tell whether a call would be permitted; permissions for identities are not refused by name.
- The console of a VM, stored or, on Nitro types, as it is; launches that are accepted and fail right after.
- Service Quotas' list and Canonical's image aliases.
- Permissions: calls that the policy in `scavenger.cloud.policies` does not allow are refused.
- Faults: calls refused or denied, answers lost, calls never answered.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from email.utils import format_datetime
from importlib import resources
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode

from aws_instances import ACCOUNT, REGION, STATES, Instances
from moto.ec2.models import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from served import Served
from werkzeug.serving import WSGIRequestHandler, make_server

__all__ = ["ACCOUNT", "REGION", "AwsServer"]

TOKEN_KEPT_S = 86_400.0
# What there is of each type: the rest of EC2's types is unknown here.
VCPUS = {"c5.large": 2, "c5.xlarge": 4, "c6g.large": 2, "g4dn.xlarge": 4}
ON_DEMAND_PRICES = {"c5.large": 0.085, "c5.xlarge": 0.17, "c6g.large": 0.068, "g4dn.xlarge": 0.526}
IMAGE = "ami-1e749f67"
IMAGE_GIB = 15
"""Size of its snapshot."""
PUBLIC_IMAGES = (
    "/aws/service/canonical/ubuntu/server/24.04/stable/current/",
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
)
FAMILY_QUOTAS = (
    ("L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"),
    ("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"),
    ("L-DB2E81BA", "Running On-Demand G and VT instances"),
    ("L-417A185B", "Running On-Demand P instances"),
    ("L-7212CCBC", "All P Spot Instance Requests"),
    ("L-C4BD4855", "All P5 Spot Instance Requests"),
    ("L-0263D0A3", "EC2-VPC Elastic IPs"),
)
_SERVICES = {"AmazonSSM": "ssm", "ServiceQuotasV20190624": "servicequotas"}
BY_TESTS = {"CreateSubnet", "CreateVolume", "CreateVpc", "StopInstances"}
"""What tests do as the account's owner; all else needs what the policy allows that users apply."""
UNANSWERED = ("Unavailable", "InternalError", "cut", "garbage")

StartResponse = Callable[[str, list[tuple[str, str]]], object]


def _allowed() -> frozenset[str]:
    """Every action of the policy that the documentation tells to apply; its conditions are not looked at."""
    policy = json.loads(resources.files("scavenger.cloud.policies").joinpath("aws.json").read_text())
    actions = (statement["Action"] for statement in policy["Statement"])
    return frozenset(one for each in actions for one in ([each] if isinstance(each, str) else each))


POLICY = _allowed()


@dataclass(slots=True)
class Token:
    """A launch that was done: its parameters and its answer."""

    parameters: dict[str, str]
    answer: bytes
    instance_id: str


class Answer(Exception):  # noqa: N818 - not always an error
    """An answer that needs no moto."""

    def __init__(self, status: str, body: bytes, kind: str = "text/xml") -> None:
        super().__init__(status)
        self.status, self.body, self.kind = status, body, kind


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: object) -> None:
        pass

    def date_time_string(self, timestamp: float | None = None) -> str:
        return format_datetime(self.server.app.now(), usegmt=True)  # type: ignore[attr-defined]


class AwsServer(Instances):
    """See the module; faults are set by assignment, and `advance` moves its time.

    Attributes:
        url: Of every service.
        default_vpc: Whether the account has a default VPC.
        profiles: Names of the account's instance profiles.
        policy_denies: Actions that a policy of the organisation forbids.
        spot_role: Whether there is the service-linked role for spot VMs, or the caller may make it.
        groups_unlisted: So many of the next lists of security groups show none.
        hung: The next call is not looked at before this is set.
        calls: How often each action was asked for.
        faults_fired: How many calls met a fault.
        asked: The request by which each instance was launched.
        late_failures: Codes and messages of launches that are accepted next, and whose VM ends before it is up.
        is_nitro: Whether a VM's console can be read as it is.
        consoles: What VMs have written, by instance id.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        super().__init__()
        self._served = Served(make_server(host, 0, self, threaded=True, request_handler=_Quiet))
        self.url = self._served.url
        self.reset()

    def reset(self) -> None:
        """An empty account and no faults."""
        with self._lock:
            self.clear()
            self.calls: Counter[str] = Counter()
            self.launches: list[dict[str, str]] = []
            self.asked: dict[str, dict[str, str]] = {}
            self.faults_fired = 0
            self.throttled = self.failing = self.lost = 0
            self.hung: threading.Event | None = None
            self.denied: set[str] = set()
            self.groups_unlisted = 0
            self.late_failures: list[tuple[str, str]] = []
            self.is_nitro = True
            self.consoles: dict[str, str] = {}
            self.impaired: set[str] = set()
            self.empty_zones: set[str] = set()
            self.vcpus_max: int | None = None
            self.hidden_s = 0.0
            self.replays: Literal["current", "original"] = "current"
            self.spot_prices = {
                (vm, f"{REGION}{zone}"): round(price * 0.3, 4)
                for vm, price in ON_DEMAND_PRICES.items()
                for zone in "abcdef"
            }
            self._tokens: dict[tuple[str, str], Token] = {}
            self.image = IMAGE
            self.default_vpc = True
            self.profiles: set[str] = set()
            self.policy_denies: set[str] = set()
            self.spot_role = True
            self.aliases: set[str] = set()
            self._unanswered = itertools.cycle(UNANSWERED)

    def close(self) -> None:
        """End the server and its thread."""
        self._served.close()

    # Requests

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if "/s3/aws4_request" in environ.get("HTTP_AUTHORIZATION", ""):
            return self._moto(environ, start_response)  # type: ignore[no-any-return]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        form = dict(parse_qsl(body.decode(), keep_blank_values=True)) if not target else json.loads(body)
        action = target.rpartition(".")[2] or form.get("Action", "")
        hung, self.hung = self.hung, None
        if hung is not None:
            self.faults_fired += 1
            hung.wait(30)
        with self._lock:
            try:
                self.calls[action] += 1
                self._settle()
                self._refuse(action, target)
                status, headers, answer = self._serve(action, form, environ, body)
            except Answer as told:
                status, answer = told.status, told.body
                headers = [("Content-Type", told.kind), ("Content-Length", str(len(answer)))]
            lost = self.lost > 0 and action in ("RunInstances", "TerminateInstances")
            if lost:
                self.lost -= 1
                self.faults_fired += 1
            elif answer == b"cut":
                lost = True
        if lost:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise BrokenPipeError
        start_response(status, [header for header in headers if header[0].lower() != "date"])
        return [answer]

    def _refuse(self, action: str, target: str) -> None:
        allowed = f"{_SERVICES.get(target.partition('.')[0], 'ec2')}:{action}" in POLICY
        allowed = allowed or action in BY_TESTS or action == "GetCallerIdentity"  # which needs no permission
        if "*" in self.denied or action in self.denied or not allowed:
            self.faults_fired += 1
            code = "AccessDeniedException" if target else "UnauthorizedOperation"
            words = (
                "You are not authorized to perform this operation. Encoded authorization failure message: "
            )
            raise _error(code, words + "x" * 900, "400 Bad Request" if target else "403 Forbidden", target)
        if action in self.policy_denies:
            self.faults_fired += 1
            words = (
                "You are not authorized to perform this operation. User: arn:aws:iam::123456789012:user/"
                f"{'x' * 150} is not authorized to perform: ec2:{action} on resource: "
                "arn:aws:ec2:us-east-1:123456789012:instance/* with an explicit deny in a service control policy. "
                "Encoded authorization failure message: "
            )
            raise _error("UnauthorizedOperation", words + "x" * 900, "403 Forbidden")
        if self.throttled > 0:
            self.throttled -= 1
            self.faults_fired += 1
            if target:
                raise _error("ThrottlingException", "Rate exceeded", "400 Bad Request", target)
            raise _error("RequestLimitExceeded", "Request limit exceeded.", "503 Service Unavailable")
        if self.failing > 0:
            self.failing -= 1
            self.faults_fired += 1
            how = next(self._unanswered)
            if how == "cut":
                raise Answer("200 OK", b"cut")
            if how == "garbage":
                raise Answer("502 Bad Gateway", b"<html>\nBad\nGateway", "text/html")
            status = "500 Internal Server Error" if how == "InternalError" else "503 Service Unavailable"
            raise _error(how, "An internal error\nhas occurred", status, target)

    def _serve(
        self, action: str, form: dict[str, Any], environ: dict[str, Any], body: bytes
    ) -> tuple[str, list[tuple[str, str]], bytes]:
        if form.get("DryRun") == "true":
            self._check_launch(form) if action == "RunInstances" else None
            words = "Request would have succeeded, but DryRun flag is set."
            raise _error("DryRunOperation", words, "412 Precondition Failed")
        if action == "RunInstances":
            return self._run(form, environ)
        if not self.default_vpc:
            self._without_default_vpc(action, form)
        if action == "ListServiceQuotas":
            raise _json(self._list_quotas(form))
        if action == "GetParameter" and form["Name"].startswith(PUBLIC_IMAGES):
            self.aliases.add(form["Name"])
            raise _json({"Parameter": {"Name": form["Name"], "Type": "String", "Value": self.image}})
        if action == "DescribeSecurityGroups" and self.groups_unlisted > 0:
            self.groups_unlisted -= 1
            self.faults_fired += 1
            empty = b"<DescribeSecurityGroupsResponse><securityGroupInfo/></DescribeSecurityGroupsResponse>"
            raise Answer("200 OK", empty)
        if action == "GetConsoleOutput":
            raise self._console_output(form)
        if action == "DescribeInstanceStatus":
            raise self._instance_status(form)
        if action == "DescribeSpotPriceHistory":
            raise self._spot_price_history(form)
        if action in ("DescribeInstances", "TerminateInstances"):
            said = {instance: instance._reason for instance in self._known().values()}
            answer = self._forward_seen(environ, body)
            for instance, reason in said.items():
                if self._lives[instance.id].asked_s is not None:
                    instance._reason = reason  # to ask again changes nothing
        else:
            answer = self._forward(environ, body)
        if action == "TerminateInstances" and answer[0].startswith("200"):
            for key, instance_id in form.items():
                if key.startswith("InstanceId."):
                    life = self._lives[instance_id]
                    if life.asked_s is None:
                        life.asked_s = self.now_s
                        self._shut_down(
                            instance_id, "Client.UserInitiatedShutdown", "User initiated shutdown"
                        )
        return answer

    def _without_default_vpc(self, action: str, form: dict[str, Any]) -> None:
        if action == "DescribeSubnets" and form.get("Filter.1.Name") == "default-for-az":
            raise Answer("200 OK", b"<DescribeSubnetsResponse><subnetSet/></DescribeSubnetsResponse>")
        if action == "CreateSecurityGroup" and "VpcId" not in form:
            raise _error("VPCIdNotSpecified", "No default VPC for this user")

    def _check_place(self, form: dict[str, str], zone: str) -> None:
        """What EC2 refuses because of the network and identity that are asked for."""
        subnet_id = form.get("SubnetId") or form.get("NetworkInterface.1.SubnetId")
        if "NetworkInterface.1.DeviceIndex" in form and ("SubnetId" in form or "SecurityGroupId.1" in form):
            raise _error(
                "InvalidParameterCombination",
                "Network interfaces and an instance-level subnet ID may not be specified on the same request",
            )
        if subnet_id is None and not self.default_vpc:
            raise _error("VPCIdNotSpecified", "No default VPC for this user")
        subnets = {
            one.id: one for by_id in ec2_backends[ACCOUNT][REGION].subnets.values() for one in by_id.values()
        }
        if subnet_id is not None:
            if subnet_id not in subnets:
                raise _error("InvalidSubnetID.NotFound", f"The subnet ID '{subnet_id}' does not exist")
            if subnets[subnet_id].availability_zone != zone:
                raise _error(
                    "InvalidParameterValue",
                    f"The subnet '{subnet_id}' is not in the Availability Zone '{zone}'",
                )
        profile = (
            form.get("IamInstanceProfile.Name") or form.get("IamInstanceProfile.Arn", "").rpartition("/")[2]
        )
        if profile and profile not in self.profiles:
            raise _error(
                "InvalidParameterValue",
                f"Value ({profile}) for parameter iamInstanceProfile.name is invalid. "
                "Invalid IAM Instance Profile name",
            )
        if profile and "iam:PassRole" not in POLICY:
            raise _error("UnauthorizedOperation", "You are not authorized to perform: iam:PassRole")
        may_make = "iam:CreateServiceLinkedRole" in POLICY
        if form.get("InstanceMarketOptions.MarketType") == "spot" and not (self.spot_role and may_make):
            raise _error(
                "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
                "The provided credentials do not have permission to create the service-linked role for EC2 Spot "
                "Instances.",
                "403 Forbidden",
            )

    def _forward(self, environ: dict[str, Any], body: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
        heard: list[Any] = []
        inner = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        chunks = self._moto(inner, lambda status, headers, _=None: heard.extend((status, headers)))
        return heard[0], heard[1], b"".join(chunks)

    # Actions

    def _run(self, form: dict[str, str], environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        parameters = {key: value for key, value in form.items() if key not in ("ClientToken", "Version")}
        zone, vm = form.get("Placement.AvailabilityZone", f"{REGION}a"), form.get("InstanceType", "")
        key = (zone, form.get("ClientToken", ""))
        token = self._tokens.get(key) if key[1] else None
        if token is not None and self._remembers(token):
            if token.parameters != parameters:
                raise _error("IdempotentParameterMismatch", "Arguments on this idempotent request differ")
            raise Answer("200 OK", self._replay(token))
        self._check_launch(form)
        self._check_place(form, zone)
        spot = form.get("InstanceMarketOptions.MarketType") == "spot"
        count = self._room(form, vm, zone, spot=spot)
        # moto would look for the instance profile at another service
        kept = {key: value for key, value in form.items() if not key.startswith("IamInstanceProfile")}
        body = urlencode({**kept, "MinCount": str(count), "MaxCount": str(count)}).encode()
        status, headers, answer = self._forward(environ, body)
        if not status.startswith("200"):
            return status, headers, answer
        self.launches.append(form)
        for instance_id in re.findall(rb"<instanceId>([^<]+)</instanceId>", answer):
            instance = self._known()[instance_id.decode()]
            instance.launch_time = self._at(self.now_s)
            address = str(instance.private_ip)
            self._roles[instance.id], self.asked[instance.id] = form.get("IamInstanceProfile.Name", ""), form
            for (
                interface
            ) in instance.nics.values():  # else moto refuses to end a VM twice, which EC2 does not
                interface.delete_on_termination = False
            self._begin(instance, form.get("UserData", ""))
            answer = answer.replace(address.encode(), str(instance.private_ip).encode())
            if key[1]:
                self._tokens[key] = Token(parameters, answer, instance.id)
            if self.late_failures:
                self.faults_fired += 1
                self._shut_down(instance.id, *self.late_failures.pop(0))
        self._settle()
        born = f"<launchTime>{self.now():%Y-%m-%dT%H:%M:%S.000Z}</launchTime>".encode()
        answer = re.sub(rb"<launchTime>[^<]*</launchTime>", born, answer)
        if key[1]:
            self._tokens[key].answer = answer
        return status, [(k, v) for k, v in headers if k.lower() != "content-length"], answer

    def _check_launch(self, form: dict[str, str]) -> None:
        vm = form.get("InstanceType", "")
        if vm not in VCPUS:
            raise _error("InvalidParameterValue", f"Invalid value '{vm}' for InstanceType.")
        if "MaxCount" not in form or "MinCount" not in form:
            raise _error("MissingParameter", "The request must contain the parameter MinCount and MaxCount")
        if len(base64.b64decode(form.get("UserData", ""))) > 16_384:
            raise _error("InvalidParameterValue", "User data is limited to 16384 bytes")
        if int(form.get("BlockDeviceMapping.1.Ebs.VolumeSize", IMAGE_GIB)) < IMAGE_GIB:
            raise _error(
                "InvalidBlockDeviceMapping",
                f"Volume is smaller than its snapshot, expect size >= {IMAGE_GIB}GB",
            )

    def console_text(self, instance_id: str) -> str:
        """What a VM has written so far."""
        return self.consoles.get(instance_id, "")

    def _console_output(self, form: dict[str, str]) -> Answer:
        instance_id = form["InstanceId"]
        if instance_id not in self._known():
            return _error("InvalidInstanceID.NotFound", f"The instance ID '{instance_id}' does not exist")
        if form.get("Latest") == "true" and not self.is_nitro:
            return _error(
                "UnsupportedOperation",
                "This instance type does not support retrieving the latest console logs.",
            )
        text = self.console_text(instance_id)[-65_536:]
        output = f"<output>{base64.b64encode(text.encode()).decode()}</output>" if text else ""
        return Answer(
            "200 OK",
            f"<GetConsoleOutputResponse><requestId>0</requestId><instanceId>{instance_id}</instanceId>"
            f"<timestamp>{self.now():%Y-%m-%dT%H:%M:%S.000Z}</timestamp>{output}</GetConsoleOutputResponse>".encode(),
        )

    def _instance_status(self, form: dict[str, str]) -> Answer:
        """Of the VMs asked for that run, as by default."""
        items = ""
        for instance_id in (value for key, value in form.items() if key.startswith("InstanceId.")):
            if instance_id not in self._known():
                words = f"The instance ID '{instance_id}' does not exist"
                return _error("InvalidInstanceID.NotFound", words)
            if self._known()[instance_id].state == "running":
                status = "impaired" if instance_id in self.impaired else "ok"
                items += (
                    f"<item><instanceId>{instance_id}</instanceId><instanceState><code>16</code><name>running</name>"
                    f"</instanceState><systemStatus><status>ok</status></systemStatus><instanceStatus><status>{status}"
                    f"</status></instanceStatus></item>"
                )
        return Answer(
            "200 OK",
            f"<DescribeInstanceStatusResponse><instanceStatusSet>{items}</instanceStatusSet>"
            "</DescribeInstanceStatusResponse>".encode(),
        )

    def _room(self, form: dict[str, str], vm: str, zone: str, *, spot: bool) -> int:
        """How many VMs there is room for, or the reason that there is none."""
        least, most = int(form["MinCount"]), int(form["MaxCount"])
        if zone in self.empty_zones:
            self.faults_fired += 1
            raise _error(
                "InsufficientInstanceCapacity",
                f"We currently do not have sufficient {vm} capacity in the Availability Zone you requested ({zone}).",
                "500 Internal Server Error",
            )
        price = form.get("InstanceMarketOptions.SpotOptions.MaxPrice")
        if spot and price and float(price) < self.spot_prices[vm, zone]:
            raise _error("SpotMaxPriceTooLow", "Your Spot request price is lower than the minimum required.")
        room = most if self.vcpus_max is None else (self.vcpus_max - self._vcpus_used()) // VCPUS[vm]
        if room < least:
            self.faults_fired += 1
            if spot:
                raise _error("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
            raise _error(
                "VcpuLimitExceeded",
                f"You have requested more vCPU capacity than your current vCPU limit of {self.vcpus_max} allows",
            )
        return min(most, room)

    def _vcpus_used(self) -> int:
        return sum(
            VCPUS.get(instance.instance_type, 1)
            for instance in self._known().values()
            if instance.state in ("pending", "running")
        )

    def _remembers(self, token: Token) -> bool:
        life = self._lives[token.instance_id]
        return life.asked_s is None or self.now_s < life.asked_s + self.stop_s + TOKEN_KEPT_S

    def _replay(self, token: Token) -> bytes:
        if self.replays == "original":
            return token.answer
        state = self.instances()[token.instance_id].state
        shown = f"<instanceState><code>{STATES[state]}</code><name>{state}</name></instanceState>".encode()
        return re.sub(rb"<instanceState>.*?</instanceState>", shown, token.answer, flags=re.DOTALL)

    def _forward_seen(self, environ: dict[str, Any], body: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
        """What moto tells of those that are old enough to be seen."""
        backend = ec2_backends[ACCOUNT][REGION]
        everything = backend.reservations
        backend.reservations = {
            key: reservation
            for key, reservation in everything.items()
            if all(
                self.now_s - self._lives[instance.id].born_s >= self.hidden_s
                for instance in reservation.instances
            )
        }
        try:
            return self._forward(environ, body)
        finally:
            backend.reservations = everything

    def _list_quotas(self, form: dict[str, Any]) -> dict[str, Any]:
        """One quota a page."""
        start = int(form.get("NextToken") or 0)
        code, name = FAMILY_QUOTAS[start]
        limit = float(128 if self.vcpus_max is None else self.vcpus_max)
        page = {"Quotas": [{"ServiceCode": "ec2", "QuotaCode": code, "QuotaName": name, "Value": limit}]}
        more = start + 1 < len(FAMILY_QUOTAS)
        return {**page, "NextToken": str(start + 1)} if more else page

    def _spot_price_history(self, form: dict[str, str]) -> Answer:
        asked = {value for key, value in form.items() if key.startswith("InstanceType.")}
        items = "".join(
            f"<item><instanceType>{vm}</instanceType><productDescription>Linux/UNIX</productDescription>"
            f"<spotPrice>{price:.6f}</spotPrice><timestamp>{self.now():%Y-%m-%dT%H:%M:%SZ}</timestamp>"
            f"<availabilityZone>{zone}</availabilityZone></item>"
            for (vm, zone), price in self.spot_prices.items()
            if not asked or vm in asked
        )
        return Answer(
            "200 OK",
            f"<DescribeSpotPriceHistoryResponse><spotPriceHistorySet>{items}</spotPriceHistorySet>"
            "</DescribeSpotPriceHistoryResponse>".encode(),
        )


def _error(code: str, message: str, status: str = "400 Bad Request", target: str = "") -> Answer:
    if target:
        return _json({"__type": code, "message": message}, status)
    return Answer(
        status,
        f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
        "<RequestID>0</RequestID></Response>".encode(),
    )


def _json(document: dict[str, Any], status: str = "200 OK") -> Answer:
    return Answer(status, json.dumps(document).encode(), "application/x-amz-json-1.1")
