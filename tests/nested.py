"""Builds values that consist of values from the names of all their fields, so that tests need not spell the groups."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, get_type_hints

from scavenger.domain.configuration import Configuration

T = TypeVar("T")
WHOLE = (Configuration,)
"""Kinds that are given as a whole."""


def built(kind: type[T], **given: Any) -> T:
    """A value of a dataclass; a field of one of its parts is given by its own name."""
    made = _built(kind, given)
    assert not given, f"{kind.__name__} has no {sorted(given)}"
    return made


def _built(kind: type[T], given: dict[str, Any]) -> T:
    hints, own = get_type_hints(kind), {}
    for one in fields(kind):  # type: ignore[arg-type]
        if one.name in given:
            own[one.name] = given.pop(one.name)
        elif is_dataclass(hints[one.name]) and hints[one.name] not in WHOLE:
            own[one.name] = _built(hints[one.name], given)  # type: ignore[arg-type]
    return kind(**own)


def changed(value: T, **changes: Any) -> T:
    """As `dataclasses.replace`; a field of a part is changed by its own name."""
    made = _changed(value, changes)
    assert not changes, f"{type(value).__name__} has no {sorted(changes)}"
    return made


def _changed(value: T, changes: dict[str, Any]) -> T:
    own = {}
    for one in fields(value):  # type: ignore[arg-type]
        if one.name in changes:
            own[one.name] = changes.pop(one.name)
        elif is_dataclass(part := getattr(value, one.name)) and not isinstance(part, WHOLE):
            own[one.name] = _changed(part, changes)  # type: ignore[type-var]
    return replace(value, **own)  # type: ignore[type-var]
