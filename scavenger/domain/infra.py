"""Where a job runs, as the job file's `infra` says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetJsonSchemaHandler, PlainSerializer, PlainValidator, ValidationError

from scavenger.domain.capabilities import Capabilities
from scavenger.domain.forms import did_you_mean, fault, shown
from scavenger.domain.providers import LOCAL, Location, ProviderKind, capabilities_of, find_kind, kinds
from scavenger.domain.vm_settings import CloudSettings, faults_of
from scavenger.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Infra:
    """Where a job runs.

    Attributes:
        provider: `local`, or the name of a `ProviderKind`.
        location: A region or zone, or a context (kubernetes; empty for the current one).
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
    def _at(self) -> Location:
        kind = find_kind(self.provider)
        return Location(self.location) if kind is None else kind.locate(self.location)

    @property
    def region(self) -> str:
        """The region; of Kubernetes, the context, or `cluster`; else empty."""
        return self._at.region

    @property
    def zone(self) -> str:
        """The zone; empty if any zone of the region may be used."""
        return self._at.zone

    def __str__(self) -> str:
        return f"{self.provider}/{self.location}" if self.location else self.provider

    @classmethod
    def parse(cls, value: object) -> Infra:
        """Parse `PROVIDER/LOCATION`, such as `aws/us-east-1`, or `local` or `kubernetes` alone.

        A mapping has one of them under `at`, and settings of the VMs.
        """
        if isinstance(value, Infra):
            return value
        if isinstance(value, Mapping):
            return cls._with_settings(value)
        if not isinstance(value, str):
            raise fault(f"{_must_be()}, not {shown(value)}")
        provider, slash, location = value.partition("/")
        try:
            kind = find_kind(provider)
            names = [one.name for one in kinds()] if kind is None else []
        except ConfigurationError as error:
            raise fault(f"cannot be read: {error}") from error
        if kind is None or not kind.is_place:
            raise fault(f"{_must_be()}, not {shown(value)}{did_you_mean(provider, names)}")
        if not slash and (kind.here or not kind.region):
            return cls(provider)
        if kind.admits(location):
            return cls(provider, location)
        if not kind.region:
            raise fault(f"{_must_be()}, not {shown(value)}")
        raise fault(f"must say where, as {kind.words}, not {shown(value)}")

    @classmethod
    def _with_settings(cls, value: Mapping[str, Any]) -> Infra:
        if "at" not in value:
            raise fault("must say where under the key 'at', such as at: aws/us-east-1")
        place = cls.parse(value["at"])
        if not place.capabilities.rents:
            names = ", ".join(kind.name for kind in kinds() if kind.capabilities.rents)
            raise fault(f"must be at one of {names} to have settings of VMs, not at {place}")
        kind = find_kind(place.provider)
        assert kind is not None
        model = kind.settings
        given = {key: one for key, one in value.items() if key != "at"}
        try:
            return cls(place.provider, place.location, model.model_validate(given) if given else None)
        except ValidationError as error:
            at, text = faults_of(error, model)[0]
            raise fault(text, *at) from error


def _must_be() -> str:
    """What `infra` may be, in words."""
    first, *others = (kind.short for kind in kinds())
    return f"must be {', '.join([first, *others[:-1]])} or {others[-1]}"


def _written(infra: Infra) -> str | dict[str, Any]:
    if infra.settings is None:
        return str(infra)
    return {"at": str(infra), **infra.settings.model_dump(mode="json", exclude_unset=True)}


def _properties(model: type[CloudSettings]) -> dict[str, Any]:
    """The keys of a cloud's settings; what is left out is as in the settings file, and not the model's default."""
    keys = model.model_json_schema()["properties"]
    return {name: {word: one for word, one in key.items() if word != "default"} for name, key in keys.items()}


def _object(kind: ProviderKind) -> dict[str, Any]:
    """The schema of a mapping with settings of a provider's VMs."""
    at = {
        "type": "string",
        "pattern": f"^(?:{kind.pattern})$",
        "description": "The cloud, with a region or zone.",
        "examples": [f"{kind.name}/{kind.examples[0]}"],
    }
    return {
        "type": "object",
        "properties": {"at": at, **_properties(kind.settings)},
        "required": ["at"],
        "additionalProperties": False,
    }


class _Schema:
    """Writes the schema of `infra` when it is asked for, since it names the providers that are installed."""

    @staticmethod
    def __get_pydantic_json_schema__(core: object, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        known = kinds()
        text = {"type": "string", "pattern": f"^(?:{'|'.join(kind.pattern for kind in known)})$"}
        return {"anyOf": [text, *(_object(kind) for kind in known if kind.capabilities.rents)]}


InfraText = Annotated[Infra, PlainValidator(Infra.parse), PlainSerializer(_written), _Schema()]
