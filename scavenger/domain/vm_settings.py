"""The settings of rented VMs that a user writes, in the settings file and for a job under `infra`.

Each cloud has its own keys, in its own words; `vm_settings` turns them into what providers take.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, get_args

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from scavenger.domain.forms import (
    FAULT,
    Duration,
    FrozenModel,
    Path,
    did_you_mean,
    fault,
    is_number,
    shown,
    text_form,
)
from scavenger.domain.notify_settings import Webhook
from scavenger.domain.pool_settings import PoolName, PoolSettings
from scavenger.domain.service_settings import ServiceSettings
from scavenger.domain.vm import VmSettings


def _list_form(pattern: str, words: str) -> tuple[BeforeValidator, WithJsonSchema]:
    """The form of a list of different texts."""
    compiled = re.compile(pattern)

    def check(value: object) -> object:
        if not isinstance(value, list | tuple) or not value:
            raise fault(f"must be a list in which each is {words}, not {shown(value)}")
        for index, one in enumerate(value):
            if not (isinstance(one, str) and compiled.fullmatch(one)):
                raise fault(f"must be {words}, not {shown(one)}", index)
            if one in value[:index]:
                raise fault("is there twice; remove one", index)
        return tuple(value)

    item = {"type": "string", "pattern": f"^(?:{pattern})$"}
    schema = {"type": "array", "items": item, "minItems": 1, "uniqueItems": True}
    return BeforeValidator(check), WithJsonSchema(schema)


def _flag(value: object) -> object:
    if not isinstance(value, bool):
        raise fault(f"must be true or false, not {shown(value)}")
    return value


def _pairs(value: object) -> object:
    if not isinstance(value, Mapping) or not value:
        raise fault(f"must hold keys with texts, such as team: vision, not {shown(value)}")
    for key, text in value.items():
        if not isinstance(text, str):
            raise fault(f"must be a text in quotes, not {shown(text)}", str(key))
        if not key or len(key) > 128 or len(text) > 256:
            raise fault("must have a key of 1 to 128 characters, and at most 256 characters", str(key))
        if key.lower().startswith(("scavenger-", "aws:", "goog")):
            raise fault("must have another key: these are the cloud's or Scavenger's own", str(key))
    return dict(value)


_Flag = Annotated[bool, BeforeValidator(_flag), WithJsonSchema({"type": "boolean"})]
_Pairs = Annotated[
    dict[str, str],
    BeforeValidator(_pairs),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
]
_Proxy = Annotated[
    str,
    *text_form(
        r"https?://[A-Za-z0-9.:\[\]-]+/?",
        "the URL of a proxy without a password, such as 'http://proxy.example:3128'",
    ),
]
_ObjectStore = Annotated[
    str,
    *text_form(
        r"[a-z][a-z0-9]*://[^\s/:@]+(?:/\S*)?", "the URL of an object store such as 's3://bucket/checkpoints'"
    ),
]
_NAME = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
_PROJECT = r"(?:[a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]"
_Vpc = Annotated[str, *text_form("vpc-[0-9a-f]{8,17}", "the id of a VPC such as 'vpc-0a1b2c3d'")]
_Subnets = Annotated[
    tuple[str, ...], *_list_form("subnet-[0-9a-f]{8,17}", "the id of a subnet such as 'subnet-0a1b2c3d'")
]
_SecurityGroups = Annotated[
    tuple[str, ...], *_list_form("sg-[0-9a-f]{8,17}", "the id of a security group such as 'sg-0a1b2c3d'")
]
_InstanceProfile = Annotated[
    str,
    *text_form(
        r"[\w+=,.@-]{1,128}|arn:aws[a-z-]*:iam::[0-9]{12}:instance-profile/[\w+=,.@/-]{1,512}",
        "the name or ARN of an instance profile",
    ),
]
_AwsKey = Annotated[
    str,
    *text_form(
        r"arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:(?:key|alias)/[\w/-]{1,256}|alias/[\w/-]{1,250}"
        r"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        "the ARN, alias or id of a KMS key",
    ),
]
_Project = Annotated[str, *text_form(_PROJECT, "the id of a project")]
_Network = Annotated[
    str,
    *text_form(
        rf"{_NAME}|projects/{_PROJECT}/global/networks/{_NAME}",
        "the name of a network, or projects/PROJECT/global/networks/NAME",
    ),
]
_Subnetwork = Annotated[
    str,
    *text_form(
        rf"{_NAME}|projects/{_PROJECT}/regions/[a-z0-9-]+/subnetworks/{_NAME}",
        "the name of a subnetwork, or projects/PROJECT/regions/REGION/subnetworks/NAME",
    ),
]
_NetworkTags = Annotated[tuple[str, ...], *_list_form(_NAME, "a network tag such as 'training'")]
_ServiceAccount = Annotated[
    str, *text_form(r"[a-z0-9.-]+@[a-z0-9.-]+", "the e-mail address of a service account")
]
_Name = Annotated[str, *text_form(r"[\w-]{1,40}", "a name of letters, digits, _ and -")]
_GcpKey = Annotated[
    str,
    *text_form(
        rf"projects/{_PROJECT}/locations/[a-z0-9-]+/keyRings/[\w-]+/cryptoKeys/[\w-]+",
        "projects/PROJECT/locations/LOCATION/keyRings/RING/cryptoKeys/KEY",
    ),
]


def _amount(most: float, words: str) -> tuple[BeforeValidator, WithJsonSchema]:
    """The form of a number above 0."""

    def check(value: object) -> object:
        if not (is_number(value) and 0 < value <= most):
            raise fault(f"must be {words} above 0 and at most {most:g}, not {shown(value)}")
        return float(value)

    return BeforeValidator(check), WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": most})


_Label = Annotated[
    str, *text_form(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", "a name of small letters, digits and -")
]
_Image = Annotated[str, *text_form(r"[\w.:/@-]{1,512}", "the name of a container image")]
_Usd = Annotated[float, *_amount(1000.0, "US dollars")]
_Percent = Annotated[float, *_amount(100.0, "percent")]


class CloudSettings(FrozenModel):
    """The settings that all clouds have.

    Attributes:
        leader_needs: What a leader's VM needs to rent others, in words; `{path}` stands for the settings file.
    """

    leader_needs: ClassVar[str] = "the identity of a leader's VM in {path}"

    public_address: _Flag | None = Field(
        default=None,
        description="Whether VMs have an address in the internet; without one, they need a NAT or a proxy to load "
        "packages.",
    )
    proxy: _Proxy = Field(default="", description="HTTP proxy through which VMs load packages and data.")
    checkpoints: _ObjectStore = Field(
        default="",
        description="URL of an object store, where jobs keep their checkpoints whose files have no checkpoint.",
    )

    @property
    def leader_identity(self) -> str:
        """Identity of a leader's VM, by the cloud's own name; empty if it is not named."""
        return ""

    def launch_settings(self) -> VmSettings:
        """What a launch needs of them."""
        return VmSettings(public_address=self.public_address, proxy=self.proxy)

    def vm_tags(self) -> tuple[tuple[str, str], ...]:
        """The additional tags of VMs."""
        return ()


class AwsSettings(CloudSettings):
    """Settings of VMs at AWS."""

    leader_needs: ClassVar[str] = (
        "an instance profile as aws.leader_profile in {path}, whose role may do what `scavenger policy aws` allows"
    )

    vpc: _Vpc = Field(default="", description="VPC whose subnets are used; without it, the default VPC.")
    subnets: _Subnets = Field(default=(), description="Subnets for VMs, at most one per zone.")
    security_groups: _SecurityGroups = Field(
        default=(),
        description="Security groups of VMs, instead of one that Scavenger makes. VMs must reach each other.",
    )
    instance_profile: _InstanceProfile = Field(
        default="", description="Instance profile of VMs, whose role may read data and write checkpoints."
    )
    leader_profile: _InstanceProfile = Field(
        default="",
        description="Instance profile of a leader's VM, whose role may do what who runs scavenger may do.",
    )
    kms_key: _AwsKey = Field(default="", description="KMS key that encrypts the VMs' disks.")
    tags: _Pairs = Field(default={}, description="Tags of VMs and disks.")
    identity_certificate: Path = Field(
        default="",
        description="File with the region's RSA-2048 certificate for identity documents, for a region that is newer "
        "than this version.",
    )

    @property
    def leader_identity(self) -> str:
        return self.leader_profile

    def launch_settings(self) -> VmSettings:
        return VmSettings(
            network=self.vpc,
            subnets=self.subnets,
            firewalls=self.security_groups,
            public_address=self.public_address,
            identity=self.instance_profile,
            kms_key=self.kms_key,
            proxy=self.proxy,
        )

    def vm_tags(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self.tags.items()))


class GcpSettings(CloudSettings):
    """Settings of VMs at Google Cloud."""

    leader_needs: ClassVar[str] = (
        "a service account as gcp.leader_service_account in {path}, which has the role of gcp.yaml"
    )

    project: _Project = Field(
        default="", description="Project of the VMs; GOOGLE_CLOUD_PROJECT, if set, instead."
    )
    network: _Network = Field(
        default="", description="Network of VMs; without it and a subnetwork, `default`."
    )
    subnetwork: _Subnetwork = Field(default="", description="Subnetwork of VMs, in the job's region.")
    network_tags: _NetworkTags = Field(
        default=(), description="Network tags of VMs, by which firewall rules apply to them."
    )
    service_account: _ServiceAccount = Field(
        default="",
        description="Service account of VMs, which may read data and write checkpoints, and by which a VM proves "
        "its identity when it joins.",
    )
    leader_service_account: _ServiceAccount = Field(
        default="",
        description="Service account of a leader's VM, which may do what who runs scavenger may do.",
    )
    kms_key: _GcpKey = Field(default="", description="KMS key that encrypts the VMs' disks.")
    labels: _Pairs = Field(default={}, description="Labels of VMs and disks.")
    identity_certificates: Path = Field(
        default="",
        description="File with the certificates of Google's signing keys, PEM by key id in JSON; without it, they are "
        "read from Google.",
    )

    @property
    def leader_identity(self) -> str:
        return self.leader_service_account

    def launch_settings(self) -> VmSettings:
        return VmSettings(
            network=self.network,
            subnets=(self.subnetwork,) if self.subnetwork else (),
            firewalls=self.network_tags,
            public_address=self.public_address,
            identity=self.service_account,
            kms_key=self.kms_key,
            proxy=self.proxy,
        )

    def vm_tags(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self.labels.items()))


_Size = Annotated[float, *_amount(100_000.0, "a number")]
_PriceLabel = Annotated[
    str,
    *text_form(
        r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?",
        "the name of a label, such as 'scavenger/usd-per-hour'",
    ),
]


class NodePool(FrozenModel):
    """Nodes of a Kubernetes cluster that cost the same, by their labels.

    A pool may have no node now, as an autoscaler leaves it. What its nodes have for pods is then known from here only.
    """

    labels: _Pairs = Field(description="Labels of its nodes.")
    usd_per_hour: _Usd = Field(description="What one of its nodes costs in an hour.")
    cpus: _Size | None = Field(default=None, description="CPUs that a node has for pods.")
    memory: _Size | None = Field(default=None, description="GiB of memory that a node has for pods.")
    gpus: _Size | None = Field(default=None, description="GPUs that a node has for pods.")


_Pools = Annotated[
    dict[_Name, NodePool],
    WithJsonSchema({"type": "object", "additionalProperties": NodePool.model_json_schema()}),
]


class KubernetesSettings(CloudSettings):
    """Settings of pods of a Kubernetes cluster, and what they cost."""

    leader_needs: ClassVar[str] = (
        "a service account as kubernetes.leader_service_account in {path}, such as scavenger-leader of "
        "deploy/kubernetes"
    )

    namespace: _Label = Field(default="default", description="Namespace of the pods.")
    image: _Image = Field(
        default="", description="Container image of the pods, with Python 3.11 or newer, or with Scavenger."
    )
    service_account: _Label = Field(
        default="", description="Service account of the pods; no token of it is mounted."
    )
    pull_secret: _Label = Field(default="", description="Secret by which the image is pulled.")
    leader_service_account: _Label = Field(
        default="",
        description="Service account of a leader's pod, which may start and end the pods of its job.",
    )
    leader_claim: _Label = Field(
        default="",
        description="Persistent volume claim for the folders of leaders; without it, they end with their pods.",
    )
    node_labels: _Pairs = Field(default={}, description="Labels of the nodes that pods may be on.")
    spot_labels: _Pairs = Field(
        default={}, description="Labels of the nodes that the cloud may take back, for `spot`."
    )
    tolerated: _Pairs = Field(
        default={},
        description="Taints of nodes that pods tolerate: their keys, each with its value, or with '' for any.",
    )
    labels: _Pairs = Field(default={}, description="Labels of the pods.")
    queue: _Label = Field(default="", description="Local queue of Kueue that admits the pods.")
    queue_wait: Duration = Field(default=600.0, description="How long a pod waits to be admitted.")
    usd_per_cpu_hour: _Usd | None = Field(default=None, description="What a CPU of a pod costs in an hour.")
    usd_per_gib_hour: _Usd | None = Field(default=None, description="What a GiB of its memory costs.")
    usd_per_gpu_hour: _Usd | None = Field(default=None, description="What a GPU costs.")
    spot_percent: _Percent | None = Field(
        default=None, description="What pods on nodes with `spot_labels` cost, percent of these prices."
    )
    pools: _Pools = Field(
        default={}, description="Prices of nodes by their labels; they come before all other prices."
    )
    price_label: _PriceLabel = Field(
        default="scavenger/usd-per-hour",
        description="Label or annotation of nodes with what one costs in an hour, for what has no price here.",
    )
    autoscaled: _Flag | None = Field(
        default=None,
        description="Whether nodes are added for pods that no node has room for; without it, Scavenger looks.",
    )

    @property
    def leader_identity(self) -> str:
        return self.leader_service_account

    def vm_tags(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self.labels.items()))


def _count(least: int, most: int) -> tuple[BeforeValidator, WithJsonSchema]:
    """The form of a whole number."""

    def check(value: object) -> object:
        if not (is_number(value) and value == int(value) and least <= value <= most):
            raise fault(f"must be a whole number from {least} to {most}, not {shown(value)}")
        return int(value)

    return BeforeValidator(check), WithJsonSchema({"type": "integer", "minimum": least, "maximum": most})


def _usd_or_nothing(value: object) -> object:
    if not (is_number(value) and 0 <= value <= 1000.0):
        raise fault(f"must be US dollars from 0 to 1000, not {shown(value)}")
    return float(value)


_Word = Annotated[str, *text_form(r"[a-z][a-z0-9]{0,30}", "a name of small letters and digits")]
_Address = Annotated[
    str, *text_form(r"[A-Za-z0-9][\w.:-]{0,252}", "an address, or a Host of the configuration of SSH")
]
_Account = Annotated[str, *text_form(r"[\w][\w.-]{0,63}", "the name of a user")]


class SshHost(FrozenModel):
    """A host that is reached over SSH; what it leaves out of its size is asked there."""

    group: _Word = Field(default="lab", description="As in `infra: ssh/GROUP`.")
    address: _Address = Field(
        default="", description="Address, or a Host of the configuration of SSH; else its name."
    )
    user: _Account = Field(default="", description="Who logs in; else as SSH is configured.")
    port: Annotated[int, *_count(1, 65535)] | None = Field(default=None, description="Port of SSH.")
    rack: _Word = Field(default="", description="Hosts of one rack are a zone: near each other.")
    vm: _Name = Field(
        default="", description="Name of its type, for hosts of one size that differ otherwise."
    )
    cpus: Annotated[int, *_count(1, 10_000)] | None = Field(default=None, description="Its CPUs.")
    memory: _Size | None = Field(default=None, description="Its memory, GiB.")
    gpus: Annotated[int, *_count(0, 64)] | None = Field(default=None, description="Its GPUs.")
    usd_per_hour: Annotated[
        float,
        BeforeValidator(_usd_or_nothing),
        WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1000.0}),
    ] = Field(description="What it costs in an hour; 0 for one that costs nothing more.")


_Hosts = Annotated[
    dict[_Name, SshHost],
    WithJsonSchema({"type": "object", "additionalProperties": SshHost.model_json_schema()}),
]


class SshSettings(CloudSettings):
    """Hosts that one has, which are reached over SSH."""

    hosts: _Hosts = Field(default={}, description="The hosts by name, with what one costs.")
    config: Path = Field(
        default="", description="Configuration of OpenSSH's client, instead of the user's own."
    )
    folder: Path = Field(
        default="/var/tmp/scavenger",  # noqa: S108 - the program there makes its folder private, and checks that
        description="Where hosts keep what they run; a disk of each host's own, and the same for all users.",
    )


class Settings(FrozenModel):
    """The settings file, without the tables of providers; see `scavenger.control.settings`."""

    service: ServiceSettings = Field(default=ServiceSettings(), description="Limits of `scavenger serve`.")
    notify: dict[_Name, Webhook] = Field(default={}, description="Receivers of notifications, by name.")
    pool: dict[PoolName, PoolSettings] = Field(default={}, description="Pools of this machine, by name.")


def overridden(settings: CloudSettings, by: CloudSettings | None) -> CloudSettings:
    """Settings in which the keys that a job names replace those of the settings file.

    Args:
        settings: Of the settings file.
        by: Of the job, for the same cloud; None if it names none.
    """
    if by is None:
        return settings
    return settings.model_copy(update={key: getattr(by, key) for key in by.model_fields_set})


def faults_of(
    error: ValidationError, known: type[FrozenModel] = Settings
) -> list[tuple[tuple[str | int, ...], str]]:
    """Describe the faults of settings, unknown keys first: the place of each, and what completes its key to a sentence.

    Args:
        error: What validation has raised.
        known: The model that was validated.
    """
    found = [_described(details, known) for details in error.errors(include_url=False)]
    return sorted(found, key=lambda one: not one[1].startswith("unknown"))


def _described(details: ErrorDetails, known: type[FrozenModel]) -> tuple[tuple[str | int, ...], str]:
    kind, loc, context = details["type"], details["loc"], details.get("ctx", {})
    if kind == FAULT:
        return (*loc, *context["at"]), context["text"]
    if kind == "extra_forbidden":
        model = _model_at(known, loc[:-1])
        keys = list(model.model_fields)
        where = f" in {'.'.join(map(str, loc[:-1]))}" if len(loc) > 1 else ""
        hint = did_you_mean(str(loc[-1]), keys) or f"; known are {', '.join(keys)}"
        return loc, f"unknown key {shown(str(loc[-1]))}{where}{hint}"
    if kind == "missing":
        return loc[:-1], f"has no {loc[-1]}"
    return loc, f"cannot be {shown(details['input'])}"


def _model_at(known: type[FrozenModel], loc: tuple[str | int, ...]) -> type[FrozenModel]:
    """The model whose keys are at a location; a mapping of names to values of a model has them below its names."""
    model = known
    for key in loc:
        field = model.model_fields.get(str(key))
        if field is None:
            continue
        inner = (field.annotation, *get_args(field.annotation))
        model = next((one for one in inner if isinstance(one, type) and issubclass(one, FrozenModel)), model)
    return model
