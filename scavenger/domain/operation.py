"""Operations that users request of a running job, one at a time.

The process that runs the job takes an operation and answers it; these values only describe requests. As JSON an
operation is an object with its `kind` and its fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

STEPS_MIN = 3
"""Fewest undisturbed steps that give the spread of a profile; as `profile.steps` in the job file."""

REASON_MAX = 200
"""Longest reason of a stop, characters."""
REASON_PATTERN = r"^[^\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]*$"
"""What a reason is made of: no control characters, ends of lines, or changes of direction, which would rule the
terminal that shows it. The same for Python, JSON Schema and Rust."""

PAUSED_BY = "paused by"
"""Begins the reason of a job's end after which it waits for slots of its pool."""

_WORKER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class ScaleTo:
    """Train with this many workers."""

    workers: int

    def __post_init__(self) -> None:
        _at_least(1, self.workers, "workers")


@dataclass(frozen=True, slots=True)
class ScaleOut:
    """Add this many workers."""

    add: int

    def __post_init__(self) -> None:
        _at_least(1, self.add, "workers to add")


@dataclass(frozen=True, slots=True)
class ScaleIn:
    """Remove these workers after the current step."""

    remove: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_workers(self.remove, "workers to remove")


@dataclass(frozen=True, slots=True)
class ScaleAggregators:
    """Have the first `aggregators` of the job's aggregators hold the model, about as much each."""

    aggregators: int

    def __post_init__(self) -> None:
        _at_least(1, self.aggregators, "aggregators")


@dataclass(frozen=True, slots=True)
class Migrate:
    """Replace these workers, or all (None), by new ones, in one change of view."""

    workers: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.workers is not None:
            _check_workers(self.workers, "workers to replace")


@dataclass(frozen=True, slots=True)
class ProfileRange:
    """Measure the step time of every number of workers from `max` down to `min`, `steps` steps each [1]_.

    It starts at `max`, since leaving costs less than joining: all workers are started once.

    References:
        .. [1] Wu et al., "Elastic Deep Learning in Multi-Tenant GPU Clusters" (EDL), profile(min, max), 2021.
    """

    min: int
    max: int
    steps: int = 20

    def __post_init__(self) -> None:
        _at_least(1, self.min, "workers")
        _at_least(self.min, self.max, "most workers")
        _at_least(STEPS_MIN, self.steps, "steps")


@dataclass(frozen=True, slots=True)
class StopJob:
    """Stop the job gracefully; with `save`, save the model in its current state.

    Attributes:
        reason: Why, in one line, as the job's record will have it; empty: who asked for it.
    """

    save: bool = True
    reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.save, bool):
            raise ValueError(f"save must be true or false, not {self.save!r}")
        _check_reason(self.reason)


@dataclass(frozen=True, slots=True)
class TakeShare:
    """Train with the workers of as many slots of its pool; its server asks for this, and no user.

    Without any, the job saves, ends all its processes, and waits in the queue at its old place.

    Attributes:
        allotment: Number of the allotment that says so; a job refuses an older one than it has had.
        reason: As of `StopJob`.
    """

    slots: int
    allotment: int
    reason: str = ""

    def __post_init__(self) -> None:
        _at_least(0, self.slots, "slots")
        _at_least(1, self.allotment, "allotment")
        _check_reason(self.reason)


Operation = ScaleTo | ScaleOut | ScaleIn | ScaleAggregators | Migrate | ProfileRange | StopJob | TakeShare

_KINDS: dict[str, type[Operation]] = {
    "scale_to": ScaleTo,
    "scale_out": ScaleOut,
    "scale_in": ScaleIn,
    "scale_aggregators": ScaleAggregators,
    "migrate": Migrate,
    "profile_range": ProfileRange,
    "stop": StopJob,
    "take_share": TakeShare,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def describe(operation: Operation) -> str:
    """Describe the operation in words that can follow "asked to"."""
    match operation:
        case ScaleTo(workers):
            return f"scale to {_count(workers)}"
        case ScaleOut(add):
            return f"add {_count(add)}"
        case ScaleIn(remove):
            return f"remove {', '.join(remove)}"
        case ScaleAggregators(aggregators):
            return f"hold the model on {aggregators} aggregator{'' if aggregators == 1 else 's'}"
        case Migrate(workers):
            return "migrate every worker" if workers is None else f"migrate {', '.join(workers)}"
        case ProfileRange(least, most, steps):
            return f"profile {least} to {_count(most)}, {steps} steps each"
        case StopJob(save=save):
            return "stop" if save else "stop without saving"
        case TakeShare(0):
            return "pause"
        case TakeShare(slots):
            return f"take its share of {slots} slot{'' if slots == 1 else 's'}"


def operation_document(operation: Operation) -> dict[str, Any]:
    """Convert an operation to JSON types; `operation_from_document` reads it back."""
    values = {field.name: getattr(operation, field.name) for field in fields(operation)}
    if isinstance(operation, StopJob | TakeShare) and not operation.reason:
        del values["reason"]
    return {
        "kind": _NAMES[type(operation)],
        **{name: list(value) if isinstance(value, tuple) else value for name, value in values.items()},
    }


def operation_from_document(document: Mapping[str, Any]) -> Operation:
    """Read an operation from an untrusted document.

    Raises:
        ValueError: If the document is not a valid operation.
    """
    kind = document.get("kind") if isinstance(document, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"no operation is called {kind!r}; there are {', '.join(_KINDS)}")
    given = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in document.items()
        if name != "kind"
    }
    form: Any = _KINDS[kind]
    try:
        made: Operation = form(**given)
    except TypeError:
        known = ", ".join(field.name for field in fields(form))
        raise ValueError(f"{kind} takes {known}, not {', '.join(map(str, given)) or 'nothing'}") from None
    return made


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers:,} workers"


def _at_least(least: int, value: object, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{what} must be a whole number of at least {least}, not {value!r}")


def _check_reason(text: object) -> None:
    if not isinstance(text, str) or len(text) > REASON_MAX or not re.fullmatch(REASON_PATTERN, text):
        raise ValueError(f"a reason is one line of at most {REASON_MAX} characters")


def _check_workers(names: object, what: str) -> None:
    if not isinstance(names, tuple) or not names:
        raise ValueError(f"{what} must be named, as w1")
    for name in names:
        if not isinstance(name, str) or not _WORKER_ID.fullmatch(name):
            raise ValueError(f"{what}: {name!r} is no worker's id; `scavenger status JOB` lists them")
    if len(set(names)) != len(names):
        raise ValueError(f"{what}: {', '.join(names)} names a worker twice")
