"""Answers as values: frozen dataclasses that are the JSON. From them come documents, the OpenAPI document, and what a
client reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any, ClassVar, TypeVar

from scavenger.masking import mask_values

SCHEMA_VERSION = 1
"""Version of every JSON document except the report, which has its own (`scavenger.domain.document`)."""
_AS_THEY_ARE = frozenset({str, int, bool, type(None)})
"""Types of values that are JSON already: looked up for each, as lists have thousands."""
_FIELDS: dict[type, tuple[str, ...]] = {}

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a call; `masked` tells whether its texts may have secrets, which no document has."""

    masked: ClassVar[bool] = False

    schema_version: int = SCHEMA_VERSION


def gathered(kind: type[Value], *parts: object, **own: Any) -> Value:
    """Make a value whose fields are given, or are those of the first part that has one of that name."""
    for name in _names(kind):
        if name not in own and (part := next((one for one in parts if hasattr(one, name)), None)) is not None:
            own[name] = getattr(part, name)
    return kind(**own)


def document(answer: Any) -> dict[str, Any]:
    """An answer as JSON values."""
    values: dict[str, Any] = plain(answer)
    return mask_values(values) if isinstance(answer, Answer) and answer.masked else values


def plain(value: Any) -> Any:
    """A record as JSON values: times in ISO 8601, paths as text, floats that are not finite as null."""
    kind = type(value)
    if kind in _AS_THEY_ARE or isinstance(value, str | int):
        return value
    if names := _names(kind):
        return {
            name: item if type(item := getattr(value, name)) in _AS_THEY_ARE else plain(item)
            for name in names
        }
    if isinstance(value, Mapping):
        return {str(key): item if type(item) in _AS_THEY_ARE else plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [item if type(item) in _AS_THEY_ARE else plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, float) else str(value)


def _names(kind: type) -> tuple[str, ...]:
    """Fields of a dataclass; none of any other type. Kept, as lists have thousands of values."""
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(item.name for item in fields(kind)) if is_dataclass(kind) else ()
    return _FIELDS[kind]
