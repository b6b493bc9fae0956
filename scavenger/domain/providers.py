"""The kinds of providers: what is known of a provider of machines by its name, without the code that speaks to it.

Those of this package are in a table. Others are of installed packages, each an entry point of `scavenger.providers`:
its name is the provider's, its value a `ProviderKind`. They are looked for only where a name is none of this package's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from scavenger.domain.capabilities import Capabilities
from scavenger.domain.pool import POOL
from scavenger.domain.vm_settings import (
    AwsSettings,
    CloudSettings,
    GcpSettings,
    KubernetesSettings,
    SshSettings,
)
from scavenger.errors import ConfigurationError

GROUP = "scavenger.providers"
"""The group of entry points that other packages have for their providers."""
LOCAL = "local"
CURRENT = "cluster"
"""Stands for the kubeconfig's current context, or the cluster that a process runs in."""
_OF_VMS = Capabilities(zones=True)
_NAME = re.compile(r"[a-z][a-z0-9]{0,15}")


@dataclass(frozen=True, slots=True)
class Location:
    """Where machines of a provider are; `zone` is empty if they may be in any zone of the region."""

    region: str = ""
    zone: str = ""


@dataclass(frozen=True, slots=True)
class ProviderKind:
    """What is known of a provider by its name.

    Attributes:
        name: As in `infra: NAME/LOCATION`: up to 16 small letters and digits.
        adapter: The `Adapter` that makes the provider, as `MODULE:NAME`, imported when it is needed; empty for none.
        capabilities: What its machines are.
        region: Regular expression (RE2) of its regions; empty if `infra` names none.
        zone: Regular expression of what follows a region in the name of one of its zones; empty if none may be named.
        examples: Locations as users write them.
        here: The region if `infra` is the name alone; empty if a location must be named.
        settings: Keys that it has in the settings file, and for a job beside `at`.
        extra: Extra of this package that installs what the adapter imports; empty for none.
    """

    name: str
    adapter: str = ""
    capabilities: Capabilities = _OF_VMS
    region: str = ""
    zone: str = ""
    examples: tuple[str, ...] = ()
    here: str = ""
    settings: type[CloudSettings] = CloudSettings
    extra: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"a provider's name has up to 16 small letters and digits, not {self.name!r}")
        if self.region and not (self.examples and all(map(self.admits, self.examples))):
            raise ValueError(f"{self.name}: examples must be locations that its pattern admits")

    @property
    def is_place(self) -> bool:
        """Whether `infra` can name it."""
        return bool(self.region) or not self.capabilities.rents

    @property
    def location_pattern(self) -> str:
        """Regular expression of the locations."""
        return f"{self.region}(?:{self.zone})?" if self.zone else self.region

    @property
    def pattern(self) -> str:
        """Regular expression of what `infra` may be."""
        if not self.region:
            return self.name
        return (
            f"{self.name}(?:/{self.location_pattern})?"
            if self.here
            else f"{self.name}/{self.location_pattern}"
        )

    @property
    def short(self) -> str:
        """How `infra` is written in short, such as `aws/REGION`."""
        location = "REGION" if self.capabilities.rents else "NAME"
        return self.name if self.here or not self.region else f"{self.name}/{location}"

    @property
    def words(self) -> str:
        """How `infra` is written, such as `aws/us-east-1 or aws/us-east-1a`."""
        return " or ".join(
            ([self.name] if self.here else []) + [f"{self.name}/{one}" for one in self.examples]
        )

    def admits(self, location: str) -> bool:
        """Whether `infra` may name the location."""
        return bool(self.region and re.fullmatch(self.location_pattern, location))

    def locate(self, location: str) -> Location:
        """The region and the zone of a location; of one that is not admitted, all of it is the region."""
        if not location:
            return Location(self.here)
        found = re.fullmatch(f"({self.region})({self.zone})", location) if self.zone else None
        return Location(location) if found is None else Location(found[1], location)


BUILT_IN = (
    ProviderKind(LOCAL, capabilities=Capabilities(rents=False)),
    ProviderKind(
        POOL, capabilities=Capabilities(rents=False), region=r"[a-z][a-z0-9-]{0,30}", examples=("gpu",)
    ),
    ProviderKind(
        "aws",
        "scavenger.cloud.aws.adapter:ADAPTER",
        Capabilities(zones=True, leads=True, metadata="ec2"),
        r"[a-z]{2}(?:-[a-z]+)+-[0-9]",
        r"[a-z]",
        ("us-east-1", "us-east-1a"),
        settings=AwsSettings,
        extra="aws",
    ),
    ProviderKind(
        "gcp",
        "scavenger.cloud.gcp.adapter:ADAPTER",
        Capabilities(zones=True, leads=True, keeps_disks=True, metadata="gce"),
        r"[a-z]+-[a-z]+[0-9]+",
        r"-[a-z]",
        ("us-central1", "us-central1-a"),
        settings=GcpSettings,
        extra="gcp",
    ),
    ProviderKind(
        "kubernetes",
        "scavenger.cloud.kubernetes.adapter:ADAPTER",
        Capabilities(pods=True, leads=True),
        r"[A-Za-z0-9][A-Za-z0-9@:._/-]{0,252}",
        examples=("CONTEXT",),
        here=CURRENT,
        settings=KubernetesSettings,
        extra="kubernetes",
    ),
    ProviderKind(
        "ssh",
        "scavenger.cloud.ssh.adapter:ADAPTER",
        Capabilities(zones=True, as_user=True, spot=False, owned=True),
        r"[a-z][a-z0-9]{0,30}",
        r"-[a-z][a-z0-9]{0,30}",
        ("lab", "lab-rack1"),
        settings=SshSettings,
    ),
    ProviderKind(
        "kuberay",
        "scavenger.cloud.kubernetes.adapter:RAY_ADAPTER",
        Capabilities(pods=True, in_image=True),
        extra="kubernetes",
    ),
)
_KINDS: Mapping[str, ProviderKind] = {kind.name: kind for kind in BUILT_IN}


def find_kind(name: str) -> ProviderKind | None:
    """The kind of a provider, of this package or another one that is installed; None if there is none of that name.

    Raises:
        ConfigurationError: If the package that has it cannot be imported, or its value is no `ProviderKind`.
    """
    return _KINDS.get(name) or outside_kinds().get(name)


def kinds() -> tuple[ProviderKind, ...]:
    """Every kind that `infra` can name, those of this package first.

    Raises:
        ConfigurationError: As `find_kind`.
    """
    return tuple(kind for kind in (*BUILT_IN, *outside_kinds().values()) if kind.is_place)


def capabilities_of(provider: str) -> Capabilities:
    """The capabilities of a provider; of one that is not known, those of a cloud with VMs."""
    kind = find_kind(provider)
    return _OF_VMS if kind is None else kind.capabilities


@cache
def outside_kinds() -> Mapping[str, ProviderKind]:
    """The kinds of other packages, by name.

    Raises:
        ConfigurationError: As `find_kind`, or if two packages, or one and this, have a provider of the same name.
    """
    from importlib.metadata import entry_points  # takes 30 ms to import

    found: dict[str, ProviderKind] = {}
    for entry in entry_points(group=GROUP):
        of = f"the provider {entry.name} of {entry.dist.name if entry.dist else 'a package'}"
        try:
            kind = entry.load()
        except Exception as error:  # what an import of other people's code raises
            raise ConfigurationError(f"{of} cannot be loaded: {entry.value}: {error}") from error
        if not isinstance(kind, ProviderKind) or kind.name != entry.name:
            raise ConfigurationError(f"{of} is no ProviderKind of that name: {entry.value}")
        if kind.name in _KINDS or kind.name in found:
            raise ConfigurationError(f"{of} has the name of another provider")
        found[kind.name] = kind
    return found
