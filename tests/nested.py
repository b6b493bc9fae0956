"""Builds values that consist of values from the names of all their fields, so that tests need not spell the groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar, get_type_hints

import numpy as np

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
    own = {}
    for name, part in _parts(kind).items():
        if name in given:
            own[name] = given.pop(name)
        elif part is not None:
            own[name] = _built(part, given)
    return kind(**own)


@cache
def _parts(kind: type[Any]) -> dict[str, type[Any] | None]:
    """The fields, with the kinds of those that are values of values; to read annotations takes long."""
    hints = get_type_hints(kind)
    kinds = {one.name: hints[one.name] for one in fields(kind)}
    return {name: part if is_dataclass(part) and part not in WHOLE else None for name, part in kinds.items()}


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


def arrays_of(value: Any) -> list[np.ndarray]:
    """Every array in a value and its parts."""
    found = [getattr(value, one.name) for one in fields(value)]
    return [
        array
        for one in found
        for array in ([one] if isinstance(one, np.ndarray) else arrays_of(one) if is_dataclass(one) else [])
    ]


def with_arrays(value: T, change: Callable[[np.ndarray], np.ndarray]) -> T:
    """The value with each array in it and its parts changed."""
    own = {}
    for one in fields(value):  # type: ignore[arg-type]
        if isinstance(part := getattr(value, one.name), np.ndarray):
            own[one.name] = change(part)
        elif is_dataclass(part):
            own[one.name] = with_arrays(part, change)  # type: ignore[type-var]
    return replace(value, **own)  # type: ignore[type-var]
