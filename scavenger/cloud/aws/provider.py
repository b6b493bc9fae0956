"""VMs of Amazon EC2.

Every launch is one `RunInstances` for one VM in one zone, with the request's token as `ClientToken` and all tags in
the same call, so that a repeat finds the VM of the first call, and a VM without tags cannot be. EC2 keeps tokens by
zone: the same one in another zone is another launch. So a request may move to another zone only after a definite error.
In addition to VMs, it creates a security group per owner, whose members reach each other and whom nobody else reaches,
and a key pair where a public key is given.

The permissions that it needs are in `scavenger/cloud/policies/aws.json`.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from scavenger.cloud.aws.errors import error_code, translated
from scavenger.cloud.aws.network import (
    encryption_parameters,
    network_parameters,
    no_subnet,
    profile_parameters,
)
from scavenger.cloud.aws.shared_resources import SharedResources
from scavenger.cloud.aws.values import OWNER_TAG, SLOT_TAG, TOKEN_TAG, quotas_of, tags_of, vm_seen
from scavenger.cloud.base import CONSOLE_CHARACTERS
from scavenger.cloud.boot.user_data import user_data
from scavenger.domain.vm import DEFAULT_SETTINGS, Quota, VmRequest, VmSeen, VmSettings
from scavenger.errors import (
    CloudUnavailableError,
    ConfigurationError,
    CredentialsError,
    GoneError,
    ScavengerError,
    ThrottledError,
)
from scavenger.policy.provisioning.slots import LEADER_SLOT

_IMAGES = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{architecture}/hvm/ebs-gp3/ami-id"
"""Canonical's own alias: the first Ubuntu LTS whose Python runs Scavenger."""
_GPU_IMAGES = (
    "/aws/service/deeplearning/ami/{architecture}/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
)
"""Amazon's own alias: Ubuntu with NVIDIA's driver, for the architectures as EC2 calls them."""
_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
_TRIES = 4
_PAUSE_S = 0.5
"""Before the first repeat of a read; doubled at each, and drawn evenly below ("full jitter") so that services part."""
_YOUNG_S = 10.0
"""A VM older than this, by the cloud's clock, was not made by the launch whose answer shows it."""
_TYPES_PER_CALL = 100
"""What `DescribeInstanceTypes` takes."""


class AwsProvider:
    """See `scavenger.cloud.base.Provider`.

    Args:
        region: Such as `us-east-1`.
        session: Where credentials come from; boto3's own search for them without. Endpoints are taken from
            `AWS_ENDPOINT_URL` and `AWS_ENDPOINT_URL_EC2`, `_SSM`, `_SERVICE_QUOTAS`.
        public_key: An OpenSSH public key that opens the VMs; empty for VMs that nobody can log in to.
        answer_max_s: Without a byte for so long, a call is given up.
        page_size: VMs per page of a list, 5 to 1,000.
        clock, sleep, rng: Monotonic seconds, pauses between repeats, and their jitter.

    Raises:
        ConfigurationError: If the region is none.
        CredentialsError: If the profile named by `AWS_PROFILE` is not there.
    """

    name = "aws"
    visibility_s = 300.0
    """EC2 sets no bound; its guide on eventual consistency tells to retry for up to five minutes."""
    remembers_s = 900.0
    """Ended VMs stay listed for about an hour; their tags, by which they are listed, may go sooner."""

    def __init__(
        self,
        region: str,
        session: Any = None,
        *,
        public_key: str = "",
        answer_max_s: float = 30.0,
        page_size: int = 1_000,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        if not _REGION.fullmatch(region):
            raise ConfigurationError(f"{region!r} is no AWS region; one is such as 'us-east-1'")
        self.region = region
        self._page_size = page_size
        self._clock, self._sleep = clock, sleep
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        # A repeat by the library could not be distinguished from a first call, and would not be within our time limit.
        config = Config(
            connect_timeout=min(5.0, answer_max_s),
            read_timeout=answer_max_s,
            retries={"total_max_attempts": 1, "mode": "standard"},
        )
        try:
            session = session or boto3.Session()
            client = partial(session.client, region_name=region, config=config)
            self._ec2, self._ssm, self._quotas = client("ec2"), client("ssm"), client("service-quotas")
        except BotoCoreError as error:
            raise translated(error, region=region) from error
        self._shared_resources = SharedResources(self._ec2, self._read, public_key)
        self._types: dict[str, dict[str, Any]] = {}
        self._subnets: dict[tuple[str, tuple[str, ...]], dict[str, dict[str, Any]]] = {}
        self._images: dict[str, tuple[str, str, int]] = {}
        self._fresh: dict[str, tuple[VmSeen, float]] = {}
        self._unseen: dict[str, float] = {}

    def zones(self, vm: str, settings: VmSettings = DEFAULT_SETTINGS) -> tuple[str, ...]:
        """See `Provider.zones`: those which have the type and a subnet, of the default VPC if no other is named."""
        offered = {
            offering["Location"]
            for offering in self._pages(
                self._ec2.describe_instance_type_offerings,
                "InstanceTypeOfferings",
                LocationType="availability-zone",
                Filters=[{"Name": "instance-type", "Values": [vm]}],
            )
        }
        if not offered:
            raise ConfigurationError(f"aws {self.region} has no VM type {vm!r}")
        subnets = self._subnets_of(settings)
        zones = tuple(sorted(offered & subnets.keys()))
        if not zones:
            raise ConfigurationError(f"aws {self.region}: {no_subnet(vm, settings, subnets)}")
        return zones

    def launch(self, request: VmRequest) -> VmSeen:
        """See `Provider.launch`.

        A token that was used with other parameters (as happens to a repeat after the default image has moved on) gives
        the VM of its first launch too. `CloudUnavailableError` where that VM is not listed yet.
        """
        parameters = self.parameters(request)
        for _ in range(2):
            try:
                answer = self._ec2.run_instances(**parameters, **self._network(request))
            except (ClientError, BotoCoreError) as error:
                code = error_code(error)
                if code == "IdempotentParameterMismatch":
                    return self._adopt(request)
                own = code in ("InvalidGroup.NotFound", "InvalidKeyPair.NotFound")
                if not own or request.template.settings.firewalls:
                    raise translated(
                        error, region=self.region, location=request.zone, vm=request.vm, spot=request.spot
                    ) from error
                self._shared_resources.forget(request.tags.owner)
                continue
            return self._launched(request, answer)
        raise CloudUnavailableError(
            f"aws {self.region} does not find the security group or key that was just made; try again"
        )

    def describe(self, instance_id: str, zone: str) -> VmSeen:
        """See `Provider.describe`; what this process launched less than `visibility_s` ago is not taken for gone."""
        try:
            answer = self._read(partial(self._ec2.describe_instances, InstanceIds=[instance_id]))
            instances = [instance for group in answer["Reservations"] for instance in group["Instances"]]
            if not instances:
                raise GoneError(f"aws {zone or self.region}: there is no VM {instance_id}")
        except GoneError:
            if self._is_fresh(instance_id):
                return self._fresh[instance_id][0]
            raise
        return vm_seen(instances[0])

    def terminate(self, instance_id: str, zone: str) -> None:
        try:
            self._read(partial(self._ec2.terminate_instances, InstanceIds=[instance_id]))
        except GoneError as error:
            if self._is_fresh(instance_id):
                raise CloudUnavailableError(
                    f"aws {zone or self.region} does not know its new VM {instance_id} yet; try again"
                ) from error

    def list_owned(self, owner: str) -> tuple[VmSeen, ...]:
        """See `Provider.list_owned`; ended VMs are shown for about an hour."""
        return tuple(seen for seen in self._tagged(OWNER_TAG, owner) if seen.tags.owner == owner)

    def list_leaders(self) -> tuple[VmSeen, ...]:
        return tuple(
            seen
            for seen in self._tagged(SLOT_TAG, str(LEADER_SLOT))
            if seen.tags.slot == LEADER_SLOT and seen.tags.owner
        )

    def impaired(self, instance_ids: Collection[str]) -> Mapping[str, str]:
        """See `Provider.impaired`: status checks, which EC2 makes once a minute."""
        answer = self._read(partial(self._ec2.describe_instance_status, InstanceIds=sorted(instance_ids)))
        return {
            status["InstanceId"]: f"EC2's {kind} status check has failed"
            for status in answer["InstanceStatuses"]
            for kind, found in (("instance", status["InstanceStatus"]), ("system", status["SystemStatus"]))
            if found["Status"] == "impaired"
        }

    def console(self, instance_id: str, zone: str) -> str:
        """See `Provider.console`: as it is now on Nitro types, and as of the last change of state on older ones."""
        read = partial(self._ec2.get_console_output, InstanceId=instance_id)
        try:
            answer = self._read(partial(read, Latest=True))
        except ConfigurationError:  # UnsupportedOperation: a type on which only the stored output can be read
            answer = self._read(read)
        return str(answer.get("Output") or "")[-CONSOLE_CHARACTERS:]

    def quotas(self) -> tuple[Quota, ...]:
        """See `Provider.quotas`: vCPUs by VM family, on demand and spot; empty where Service Quotas is denied."""
        try:
            limits = list(self._pages(self._quotas.list_service_quotas, "Quotas", ServiceCode="ec2"))
        except CredentialsError:
            return ()
        alive = self._instances(Name="instance-state-name", Values=["pending", "running"])
        running = [
            (instance["InstanceType"], instance.get("InstanceLifecycle") == "spot") for instance in alive
        ]
        self._learn_types({vm for vm, _ in running})
        vcpus = {vm: int(self._types[vm]["VCpuInfo"]["DefaultVCpus"]) for vm, _ in running}
        return quotas_of(limits, running, vcpus, region=self.region)

    @property
    def deletes_at(self) -> str:
        return ""

    def let_in(self, request: VmRequest) -> None:
        self._network(request)

    def spot_prices(self, vms: Collection[str]) -> Mapping[tuple[str, str], float]:
        pages = self._pages(
            self._ec2.describe_spot_price_history,
            "SpotPriceHistory",
            InstanceTypes=sorted(vms),
            ProductDescriptions=["Linux/UNIX"],
            StartTime=datetime.now(UTC),
        )
        return {(one["InstanceType"], one["AvailabilityZone"]): float(one["SpotPrice"]) for one in pages}

    def remove_leftovers(self, owner: str) -> tuple[str, ...]:
        """See `Provider.remove_leftovers`: security group, key pair, and disks whose VM is gone."""
        if any(seen.state != "gone" for seen in self.list_owned(owner)):
            return ()
        return self._shared_resources.remove(owner)

    # A launch

    def parameters(self, request: VmRequest) -> dict[str, Any]:
        """The parameters of a launch, without its security group.

        Raises:
            ConfigurationError: If there is no such VM type or image.
            CredentialsError, ThrottledError, CloudUnavailableError: See `Provider`.
        """
        self._learn_types({request.vm})
        image, root_device, least_gib = self._image(request)
        if request.template.disk_gib < least_gib:
            raise ConfigurationError(
                f"resources.disk: {request.template.disk_gib} GiB do not hold the image {image}; "
                f"write disk: {least_gib} or more"
            )
        tags = tags_of(request)
        parameters: dict[str, Any] = {
            "ClientToken": request.tags.token,
            "MinCount": 1,
            "MaxCount": 1,
            "InstanceType": request.vm,
            "ImageId": image,
            "Placement": {"AvailabilityZone": request.zone},
            "UserData": user_data(request),
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled"},
            "BlockDeviceMappings": [
                {
                    "DeviceName": root_device,
                    "Ebs": {
                        "VolumeSize": request.template.disk_gib,
                        "VolumeType": "gp3",
                        "DeleteOnTermination": True,
                        **encryption_parameters(request.template.settings),
                    },
                }
            ],
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": tags}
                for kind in ("instance", "volume", *(["spot-instances-request"] if request.spot else []))
            ],
        }
        if request.template.settings.identity:
            parameters["IamInstanceProfile"] = profile_parameters(request.template.settings)
        if request.spot:
            spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            if request.usd_per_hour_max is not None:
                # what is metered: a market that asks more ends the VM, as it ends any spot VM, and no budget is crossed
                spot["MaxPrice"] = f"{request.usd_per_hour_max:.6f}"
            parameters["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
        return parameters

    def _network(self, request: VmRequest) -> dict[str, Any]:
        """Parameters of the subnet, the security groups and the key pair."""
        settings, owner = request.template.settings, request.tags.owner
        shared_by = partial(
            self._shared_resources.of, owner, groups=settings.firewalls, logins_from=settings.logins_from
        )
        if not (settings.network or settings.subnets):
            return network_parameters(settings, shared_by())
        subnets = self._subnets_of(settings)
        if request.zone not in subnets:
            raise ConfigurationError(f"aws {request.zone}: {no_subnet(request.vm, settings, subnets)}")
        subnet = subnets[request.zone]
        return network_parameters(settings, shared_by(vpc=subnet["VpcId"]), subnet["SubnetId"])

    def _subnets_of(self, settings: VmSettings) -> dict[str, dict[str, Any]]:
        """The subnet for VMs in each zone; looked up once in a process where the settings name subnets or a VPC."""
        key = (settings.network, settings.subnets)
        if key in self._subnets:
            return self._subnets[key]
        asked: dict[str, Any] = {"SubnetIds": list(settings.subnets)} if settings.subnets else {}
        vpc = {"Name": "vpc-id", "Values": [settings.network]}
        if not settings.subnets:
            default = {"Name": "default-for-az", "Values": ["true"]}
            asked = {"Filters": [vpc if settings.network else default]}
        found = self._pages(self._ec2.describe_subnets, "Subnets", **asked)
        subnets: dict[str, dict[str, Any]] = {}
        for subnet in sorted(found, key=lambda one: str(one["SubnetId"])):  # always the same one of a zone
            if settings.network in ("", subnet["VpcId"]):
                subnets.setdefault(str(subnet["AvailabilityZone"]), subnet)
        if key != ("", ()):
            self._subnets[key] = subnets
        return subnets

    def _launched(self, request: VmRequest, answer: dict[str, Any]) -> VmSeen:
        """The VM of a launch's answer, which is that of the first launch, and may be as it was then."""
        instance = answer["Instances"][0]
        seen = vm_seen(instance)
        age_s = _age_s(answer)
        if seen.state == "pending" and age_s <= _YOUNG_S:
            self._remember(seen)
            return seen
        if seen.state in ("pending", "running"):
            try:
                seen = self.describe(seen.instance_id, request.zone)
            except GoneError:
                if age_s <= self.visibility_s:
                    return seen
                seen = vm_seen({**instance, "State": {"Name": "terminated"}})
            except (ThrottledError, CredentialsError) as error:
                raise CloudUnavailableError(str(error)) from error
        return self._living(seen)

    def _adopt(self, request: VmRequest) -> VmSeen:
        """The VM of a token that was used for another request in this zone."""
        try:
            found = [
                seen
                for seen in self._tagged(TOKEN_TAG, request.tags.token)
                if seen.tags.token == request.tags.token and seen.zone == request.zone
            ]
        except (ThrottledError, CredentialsError) as error:
            raise CloudUnavailableError(str(error)) from error
        if found:
            self._unseen.pop(request.tags.token, None)
            return self._living(found[0])
        first = self._unseen.setdefault(request.tags.token, self._clock())
        message = f"aws {request.zone}: token {request.tags.token} was used for another launch, whose VM"
        if self._clock() - first <= self.visibility_s:
            raise CloudUnavailableError(f"{message} is not listed yet; try again")
        del self._unseen[request.tags.token]
        raise GoneError(f"{message} is gone; launch with a new token")

    def _living(self, seen: VmSeen) -> VmSeen:
        if seen.state in ("stopping", "gone"):
            raise GoneError(
                f"aws {seen.zone}: the VM of token {seen.tags.token}, {seen.instance_id}, has ended"
                f"{f' ({seen.reason})' if seen.reason else ''}; launch with a new token"
            )
        return seen

    def _remember(self, seen: VmSeen) -> None:
        now = self._clock()
        self._fresh = {
            key: (vm, at) for key, (vm, at) in self._fresh.items() if now - at <= self.visibility_s
        }
        self._fresh[seen.instance_id] = (seen, now)

    def _is_fresh(self, instance_id: str) -> bool:
        known = self._fresh.get(instance_id)
        return known is not None and self._clock() - known[1] <= self.visibility_s

    def _image(self, request: VmRequest) -> tuple[str, str, int]:
        """Id, root device and size (GiB) of the request's image; an alias is looked up once in a process."""
        architectures = self._types[request.vm]["ProcessorInfo"]["SupportedArchitectures"]
        architecture = next((_ARCHITECTURES[name] for name in architectures if name in _ARCHITECTURES), None)
        alias = request.template.image
        if not alias:
            if architecture is None:
                raise ConfigurationError(
                    f"no default image for {request.vm}, of {', '.join(architectures)}; name one"
                )
            alias = _IMAGES.format(architecture=architecture)
            gpus = self._types[request.vm].get("GpuInfo", {}).get("Gpus", [])
            if any(gpu.get("Manufacturer", "").upper() == "NVIDIA" for gpu in gpus):
                alias = _GPU_IMAGES.format(
                    architecture=next(name for name in architectures if name in _ARCHITECTURES)
                )
        if alias not in self._images:
            image = alias
            if alias.startswith("/"):
                answer = self._read(partial(self._ssm.get_parameter, Name=alias))
                image = str(answer["Parameter"]["Value"])
            images = self._read(partial(self._ec2.describe_images, ImageIds=[image]))["Images"]
            if not images:
                raise ConfigurationError(f"aws {self.region} has no image {image}")
            root = str(images[0]["RootDeviceName"])
            sizes = [
                int(mapping["Ebs"].get("VolumeSize", 0))
                for mapping in images[0].get("BlockDeviceMappings", [])
                if mapping.get("DeviceName") == root and "Ebs" in mapping
            ]
            self._images[alias] = (image, root, max(sizes, default=0))
        return self._images[alias]

    def _learn_types(self, vms: set[str]) -> None:
        unknown = sorted(vms - self._types.keys())
        for start in range(0, len(unknown), _TYPES_PER_CALL):
            batch = unknown[start : start + _TYPES_PER_CALL]
            answer = self._read(partial(self._ec2.describe_instance_types, InstanceTypes=batch))
            self._types.update({kind["InstanceType"]: kind for kind in answer["InstanceTypes"]})

    # Calls

    def _instances(self, **one_filter: Any) -> Iterator[dict[str, Any]]:
        for group in self._pages(
            self._ec2.describe_instances, "Reservations", Filters=[one_filter], MaxResults=self._page_size
        ):
            yield from group["Instances"]

    def _tagged(self, tag: str, value: str) -> Iterator[VmSeen]:
        # In a filter's value, * and ? stand for other characters, so the caller looks at the tag again.
        yield from map(vm_seen, self._instances(Name=f"tag:{tag}", Values=[value]))

    def _pages(self, call: Callable[..., Any], field: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        while True:
            answer = self._read(partial(call, **parameters))
            yield from answer[field]
            if not answer.get("NextToken"):
                return
            parameters["NextToken"] = answer["NextToken"]

    def _read(self, call: Callable[[], Any]) -> Any:
        """Make a call that may be repeated, and repeat it where that may help."""
        for attempt in range(_TRIES):
            try:
                return call()
            except (ClientError, BotoCoreError) as error:
                failure: ScavengerError = translated(error, region=self.region)
                if attempt == _TRIES - 1 or not isinstance(failure, (ThrottledError, CloudUnavailableError)):
                    raise failure from error
            self._sleep(self._rng.uniform(0, _PAUSE_S * 2**attempt))
        raise AssertionError("the last attempt returns or raises")


def _age_s(launch: dict[str, Any]) -> float:
    """How old the VM of a launch's answer is, by the cloud's clock alone; 0 where the answer bears no date."""
    try:
        date = parsedate_to_datetime(launch["ResponseMetadata"]["HTTPHeaders"]["date"])
        return float((date - launch["Instances"][0]["LaunchTime"]).total_seconds())
    except (KeyError, TypeError, ValueError):
        return 0.0
