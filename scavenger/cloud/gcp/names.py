"""Names, labels and machine types by the rules of Compute Engine.

A VM's name comes from its token alone, so that a second launch of the token meets the first by its name. What a VM is
for stands in labels, which may hold lower-case letters, digits, `-` and `_` only; other characters are escaped, so that
what is read is what was written.

References:
    https://cloud.google.com/compute/docs/labeling-resources and
    https://cloud.google.com/compute/docs/instances/creating-instance-with-custom-machine-type
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID, uuid5

from scavenger.domain.vm import VmRequest, VmTags
from scavenger.errors import ConfigurationError
from scavenger.policy.provisioning.slots import LEADER_SLOT

PROJECT_VARIABLE = "GOOGLE_CLOUD_PROJECT"
"""Environment variable with the project's id, as for Google's own tools."""
ENDPOINT_VARIABLE = "SCAVENGER_GCP_ENDPOINT"
"""Environment variable with where to ask in Google's place, without credentials: for tests."""

ALL_GPUS = "GPUS_ALL_REGIONS"
"""The quota of a project's GPUs, on demand and spot, in all regions."""

_LABEL_CHARACTERS = 63
_LABELS_MAX = 64
_RESERVED = "scavenger-"
_OWNER, _TOKEN, _JOB, _SLOT, _GENERATION, _RUN_MAX = (
    _RESERVED + word for word in ("owner", "token", "job", "slot", "generation", "run-max")
)
_ESCAPED = re.compile(r"_([0-9a-f]{1,6})_")

_CUSTOM = re.compile(
    r"(?:(?P<family>[a-z][a-z0-9]*)-)?custom-(?P<cpus>[1-9]\d*)-(?P<memory>[1-9]\d*)(?P<ext>-ext)?"
)
_MEMORY_STEP_MIB = 256
_CUSTOM_LIMITS = {
    "n1": (0.9, 6.5, 96),
    "n2": (0.5, 8.0, 128),
    "n2d": (0.5, 8.0, 224),
    "e2": (0.5, 8.0, 32),
    "n4": (2.0, 8.0, 80),
}
"""Least and most memory per processor, and most processors; of other families the cloud itself decides."""
_UNLIMITED = (0.0, float("inf"), 1 << 20)
_NOT_EXTENDED = ("e2",)


@dataclass(frozen=True, slots=True)
class CustomType:
    """A machine type of one's own measures.

    Attributes:
        family: `e2`, `n2`, ...; `n1` where the type's name has none.
        extended: Whether it may have more memory than its processors allow otherwise.
    """

    family: str
    cpus: int
    memory_mib: int
    extended: bool = False

    @property
    def plain_gib(self) -> float:
        """The most memory that is not extended memory, which is dearer."""
        return self.cpus * _CUSTOM_LIMITS.get(self.family, _UNLIMITED)[1]

    def name(self) -> str:
        """As Compute Engine writes it: `e2-custom-4-8192`."""
        prefix = "" if self.family == "n1" else f"{self.family}-"
        return f"{prefix}custom-{self.cpus}-{self.memory_mib}{'-ext' if self.extended else ''}"


def instance_name(token: str) -> str:
    """A VM's name: a letter first, at most 63 of a-z, 0-9 and -.

    Raises:
        ConfigurationError: If the token is no UUID in its usual form.
    """
    return _RESERVED + str(_uuid(token))


def request_id(token: str, attempt: int, variant: str = "") -> str:
    """The idempotency key of a token's insert; those after a failed one, and variants, have keys of their own.

    Under the key of a failed insert, Compute Engine would only tell of the failure again.
    """
    known = _uuid(token)
    name = f"{attempt}{variant}"
    return str(known if name == "0" else uuid5(known, name))


def labels_of(request: VmRequest) -> dict[str, str]:
    """A VM's labels: what it is for, and the request's own in lower case with `-` for what a label must not hold.

    Raises:
        ConfigurationError: If two labels have the same key, or there are too many or too long ones.
    """
    labels: dict[str, str] = {}
    for key, value in request.template.labels:
        name = _plain(key)
        if not name[:1].isalpha() or name.startswith(_RESERVED):
            raise ConfigurationError(f"label {key!r}: a key begins with a letter, and not with {_RESERVED!r}")
        if name in labels:
            raise ConfigurationError(f"label {key!r} is the same as another one in Google Cloud: {name!r}")
        labels[name] = _plain(value)
    labels |= {
        _OWNER: _escaped("owner", request.tags.owner),
        _TOKEN: _escaped("token", request.tags.token),
        _JOB: _escaped("job", request.tags.job_id),
        _SLOT: str(request.tags.slot),
        _GENERATION: str(request.tags.generation),
        _RUN_MAX: request.template.run_max_tag,
    }
    if len(labels) > _LABELS_MAX:
        raise ConfigurationError(f"{len(labels)} labels; a VM of Google Cloud has at most {_LABELS_MAX}")
    return labels


def tags_of(labels: Mapping[str, str]) -> VmTags:
    """Read the tags that `labels_of` wrote."""
    return VmTags(
        token=_unescaped(labels.get(_TOKEN, "")),
        owner=_unescaped(labels.get(_OWNER, "")),
        job_id=_unescaped(labels.get(_JOB, "")),
        slot=_number(labels.get(_SLOT, "")),
        generation=_number(labels.get(_GENERATION, "")),
    )


def owner_filter(owner: str) -> str:
    """What to list by: everything with this owner's label."""
    return f'labels.{_OWNER} = "{_escaped("owner", owner)}"'


def leader_filter() -> str:
    """What to list leaders' VMs by, whoever owns them."""
    return f'labels.{_SLOT} = "{LEADER_SLOT}"'


def run_max_of(labels: Mapping[str, str]) -> int:
    """Time after its launch at which a VM ends itself in any case, seconds; 0 if its labels do not say."""
    return max(0, _number(labels.get(_RUN_MAX, "")))


def spot_quota(on_demand: str) -> str:
    """The quota of spot VMs beside one of VMs on demand: one for each model of GPUs, one for CPUs of all series."""
    return f"PREEMPTIBLE_{on_demand if on_demand.endswith('GPUS') else 'CPUS'}"


def custom_type(name: str) -> CustomType | None:
    """A custom machine type by its name; None for a predefined one.

    Raises:
        ConfigurationError: If no such type can be had: an odd number of processors, or measures out of range.
    """
    found = _CUSTOM.fullmatch(name)
    if found is None:
        return None
    kind = CustomType(
        found["family"] or "n1", int(found["cpus"]), int(found["memory"]), found["ext"] is not None
    )
    if kind.cpus > 1 and kind.cpus % 2:
        raise ConfigurationError(f"{name}: a custom type has 1 processor or an even number of them")
    if kind.memory_mib % _MEMORY_STEP_MIB:
        raise ConfigurationError(f"{name}: memory is a multiple of {_MEMORY_STEP_MIB} MiB")
    least, most, cpus_max = _CUSTOM_LIMITS.get(kind.family, _UNLIMITED)
    per_cpu = kind.memory_mib / 1024 / kind.cpus
    if kind.cpus > cpus_max:
        raise ConfigurationError(f"{name}: {kind.family} types have at most {cpus_max} processors")
    if kind.extended and kind.family in _NOT_EXTENDED:
        raise ConfigurationError(f"{name}: {kind.family} types have no extended memory")
    if per_cpu < least or (per_cpu > most and not kind.extended):
        raise ConfigurationError(
            f"{name}: {kind.family} types have {least:g} to {most:g} GiB per processor, not {per_cpu:g}"
        )
    return kind


def _uuid(token: str) -> UUID:
    try:
        known = UUID(token)
    except ValueError:
        known = None
    if known is None or str(known) != token or known.int == 0:
        raise ConfigurationError(f"the token of a launch must be a UUID in lower case, not {token!r}")
    return known


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:_LABEL_CHARACTERS]


def _escaped(what: str, text: str) -> str:
    label = re.sub(r"[^a-z0-9-]", lambda found: f"_{ord(found[0]):x}_", text)
    if len(label) > _LABEL_CHARACTERS:
        raise ConfigurationError(
            f"{what} {text!r} takes {len(label)} characters as a label of Google Cloud, which may have "
            f"{_LABEL_CHARACTERS}"
        )
    return label


def _unescaped(label: str) -> str:
    try:
        return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), label)
    except ValueError:  # no character has this number: not written by us
        return label


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"\d{1,18}", text, re.ASCII) else -1
