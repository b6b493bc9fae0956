"""Where a job runs, as the job file's `infra` says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, ValidationError, WithJsonSchema

from scavenger.domain.capabilities import LOCAL, Capabilities, capabilities_of
from scavenger.domain.forms import did_you_mean, fault, shown
from scavenger.domain.vm_settings import CLOUD_SETTINGS, CloudSettings, faults_of

CURRENT = "cluster"
"""Stands for the kubeconfig's current context, or the cluster that a process runs in."""

_LOCATIONS = {
    "gcp": (r"[a-z]+-[a-z]+[0-9]+(?:-[a-z])?", "gcp/us-central1 or gcp/us-central1-a"),
    "aws": (r"[a-z]{2}(?:-[a-z]+)+-[0-9][a-z]?", "aws/us-east-1 or aws/us-east-1a"),
    "kubernetes": (r"[A-Za-z0-9][A-Za-z0-9@:._/-]{0,252}", "kubernetes or kubernetes/CONTEXT"),
}
_ANYWHERE = (LOCAL, "kubernetes")
"""Providers that need no location."""


@dataclass(frozen=True, slots=True)
class Infra:
    """Where a job runs.

    Attributes:
        provider: `local`, `gcp`, `aws` or `kubernetes`.
        location: A region or zone (gcp, aws), or a context (kubernetes; empty for the current one).
        settings: Settings of this job's VMs, which replace those of the settings file; None if there are none.
    """

    provider: str = LOCAL
    location: str = ""
    settings: CloudSettings | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What the provider has."""
        return capabilities_of(self.provider)

    @property
    def region(self) -> str:
        """The region, for Google Cloud or AWS; of Kubernetes, the context, or `cluster`; else empty."""
        if not self.capabilities.zones:
            return self.location or (CURRENT if self.capabilities.pods else "")
        return self.location.removesuffix(self._zone_letter).removesuffix("-")

    @property
    def zone(self) -> str:
        """The zone; empty if any zone of the region may be used."""
        return self.location if self.capabilities.zones and self._zone_letter else ""

    @property
    def _zone_letter(self) -> str:
        """The letter of the zone, such as `a` in `us-east-1a` and `us-central1-a`."""
        return self.location[-1:] if self.location[-1:].isalpha() else ""

    def __str__(self) -> str:
        return f"{self.provider}/{self.location}" if self.location else self.provider

    @classmethod
    def parse(cls, value: object) -> Infra:
        """Parse `local`, `gcp/REGION[-ZONE]`, `aws/REGION[ZONE]` or `kubernetes[/CONTEXT]`.

        A mapping has one of them under `at`, and settings of the VMs.
        """
        if isinstance(value, Infra):
            return value
        if isinstance(value, Mapping):
            return cls._with_settings(value)
        words = "must be local, gcp/REGION, aws/REGION or kubernetes"
        if not isinstance(value, str):
            raise fault(f"{words}, not {shown(value)}")
        provider, slash, location = value.partition("/")
        if provider in _ANYWHERE and not slash:
            return cls(provider)
        if provider in _LOCATIONS:
            pattern, example = _LOCATIONS[provider]
            if re.fullmatch(pattern, location):
                return cls(provider, location)
            raise fault(f"must say where, as {example}, not {shown(value)}")
        raise fault(f"{words}, not {shown(value)}{did_you_mean(provider, (LOCAL, *_LOCATIONS))}")

    @classmethod
    def _with_settings(cls, value: Mapping[str, Any]) -> Infra:
        if "at" not in value:
            raise fault("must say where under the key 'at', such as at: aws/us-east-1")
        place = cls.parse(value["at"])
        if place.provider not in CLOUD_SETTINGS:
            raise fault(
                f"must be at one of {', '.join(CLOUD_SETTINGS)} to have settings of VMs, not at {place}"
            )
        model = CLOUD_SETTINGS[place.provider]
        given = {key: one for key, one in value.items() if key != "at"}
        try:
            return cls(place.provider, place.location, model.model_validate(given) if given else None)
        except ValidationError as error:
            at, text = faults_of(error, model)[0]
            raise fault(text, *at) from error


def _written(infra: Infra) -> str | dict[str, Any]:
    if infra.settings is None:
        return str(infra)
    return {"at": str(infra), **infra.settings.model_dump(mode="json", exclude_unset=True)}


_TEXT = {
    "type": "string",
    "pattern": "^(?:local|kubernetes|"
    + "|".join(f"{provider}/{pattern}" for provider, (pattern, _) in _LOCATIONS.items())
    + ")$",
}
_PLACES = {"kubernetes": f"kubernetes(?:/{_LOCATIONS['kubernetes'][0]})?"}

_OBJECTS = (
    ("aws", CLOUD_SETTINGS["aws"], "aws/us-east-1"),
    ("gcp", CLOUD_SETTINGS["gcp"], "gcp/us-central1"),
    ("kubernetes", CLOUD_SETTINGS["kubernetes"], "kubernetes/training"),
)


def _properties(model: type[CloudSettings]) -> dict[str, Any]:
    """The keys of a cloud's settings; what is left out is as in the settings file, and not the model's default."""
    keys = model.model_json_schema()["properties"]
    return {name: {word: one for word, one in key.items() if word != "default"} for name, key in keys.items()}


InfraText = Annotated[
    Infra,
    PlainValidator(Infra.parse),
    PlainSerializer(_written),
    WithJsonSchema(
        {
            "anyOf": [
                _TEXT,
                *(
                    {
                        "type": "object",
                        "properties": {
                            "at": {
                                "type": "string",
                                "pattern": f"^(?:{_PLACES.get(cloud, f'{cloud}/{_LOCATIONS[cloud][0]}')})$",
                                "description": "The cloud, with a region or zone.",
                                "examples": [example],
                            },
                            **_properties(model),
                        },
                        "required": ["at"],
                        "additionalProperties": False,
                    }
                    for cloud, model, example in _OBJECTS
                ),
            ]
        }
    ),
]
