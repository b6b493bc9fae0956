"""Parsers for amounts and ranges of the job file: `4+`, `1..4`, `{min: 64, max: 512}`, VM types.

They are built like those in `scavenger.domain.forms`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from scavenger.domain.forms import NUMBER, VM, FrozenModel, fault, is_number, shown

WORKERS_MAX = 4096
"""Most workers of one job: larger than any cluster reported for training with parameter servers."""
BATCH_MAX = 2**24
"""Most samples of one step: three orders of magnitude above any published batch size."""
CONFIGURATIONS_MAX = 100_000
"""Most points of a tradeoff curve, so that it is predicted and drawn within seconds."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A requirement on a VM's resource: exactly `value`, or at least `value`."""

    value: float
    or_more: bool = False

    def admits(self, amount: float) -> bool:
        """Whether a VM with this amount meets the requirement."""
        return amount >= self.value if self.or_more else amount == self.value

    def __str__(self) -> str:
        return f"{self.value:g}{'+' if self.or_more else ''}"


def _write_amount(amount: Amount) -> int | float | str:
    value = int(amount.value) if amount.value == int(amount.value) else amount.value
    return f"{value}+" if amount.or_more else value


def _amount(number: str, most: float, words: str, whole: bool) -> Any:
    kind = "integer" if whole else "number"

    def parse(value: object) -> Amount:
        if isinstance(value, Amount):
            return value
        if isinstance(value, str) and re.fullmatch(rf"{number}\+", value):
            amount = Amount(float(value[:-1]), or_more=True)
        elif is_number(value) and not (whole and isinstance(value, float)):
            amount = Amount(float(value))
        else:
            raise fault(f"must be {words}, not {shown(value)}")
        if not 0 < amount.value <= most:
            raise fault(f"must be above 0 and at most {most:g}, not {shown(value)}")
        return amount

    schema = [
        {"type": "string", "pattern": f"^{number}\\+$"},
        {"type": kind, "exclusiveMinimum": 0, "maximum": most},
    ]
    return PlainValidator(parse), PlainSerializer(_write_amount), WithJsonSchema({"anyOf": schema})


CpuAmount = Annotated[
    Amount,
    *_amount(r"[0-9]{1,5}", 10_000, "a number of processors: 4 (exactly) or 4+ (at least)", whole=True),
]
MemoryAmount = Annotated[
    Amount, *_amount(NUMBER, 1_000_000, "memory in GiB: 16 (exactly) or 16+ (at least)", whole=False)
]


@dataclass(frozen=True, slots=True)
class Accelerators:
    """The type and number of accelerators of each VM."""

    name: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.name}:{self.count}"


_ACCELERATORS = r"[A-Za-z0-9][A-Za-z0-9-]{0,31}(?::[1-9][0-9]{0,2})?"


def _parse_accelerators(value: object) -> Accelerators:
    if isinstance(value, Accelerators):
        return value
    if not (isinstance(value, str) and re.fullmatch(_ACCELERATORS, value)):
        raise fault(f"must be accelerators such as T4 (one on each VM) or T4:4, not {shown(value)}")
    name, _, count = value.partition(":")
    return Accelerators(name, int(count or 1))


AcceleratorsText = Annotated[
    Accelerators,
    PlainValidator(_parse_accelerators),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": f"^{_ACCELERATORS}$"}),
]


def _parse_vm_names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise fault(f"must be a list of VM types such as [e2-standard-4, e2-standard-8], not {shown(value)}")
    names: list[str] = []
    for index, item in enumerate(value):
        name = item["vm"] if isinstance(item, Mapping) and item.keys() == {"vm"} else item
        if not isinstance(name, str) or not re.fullmatch(VM, name):
            raise fault(
                f"must be a VM type such as e2-standard-4 or {{vm: e2-standard-4}}, not {shown(name)}", index
            )
        if name in names:
            raise fault(f"lists {shown(name)} twice", index)
        names.append(name)
    return tuple(names)


_VM_SCHEMA = {"type": "string", "pattern": f"^(?:{VM})$"}

VmNames = Annotated[
    tuple[str, ...],
    PlainValidator(_parse_vm_names),
    PlainSerializer(list),
    WithJsonSchema(
        {
            "type": "array",
            "minItems": 1,
            "uniqueItems": True,
            "items": {
                "anyOf": [
                    _VM_SCHEMA,
                    {
                        "type": "object",
                        "properties": {"vm": _VM_SCHEMA},
                        "required": ["vm"],
                        "additionalProperties": False,
                    },
                ]
            },
        }
    ),
]


def _check_counts(values: Sequence[object], most: int, what: str, *, listed: bool) -> tuple[int, ...]:
    seen: set[int] = set()
    for index, value in enumerate(values):
        at = (index,) if listed else ()
        if not isinstance(value, int) or isinstance(value, bool):
            raise fault(f"must be a whole number of {what}, not {shown(value)}", *at)
        if not 1 <= value <= most:
            raise fault(f"must be from 1 to {most} {what}, not {shown(value)}", *at)
        if value in seen:
            raise fault(f"lists {value} twice", *at)
        seen.add(value)
    return tuple(sorted(seen))


def _count_schemas(most: int) -> list[dict[str, Any]]:
    one = {"type": "integer", "minimum": 1, "maximum": most}
    return [one, {"type": "array", "items": one, "minItems": 1, "uniqueItems": True}]


def _parse_workers(value: object) -> tuple[int, ...]:
    if isinstance(value, list | tuple) and value:
        return _check_counts(value, WORKERS_MAX, "workers", listed=True)
    if isinstance(value, str) and (match := re.fullmatch(_RANGE, value)):
        low, high = int(match[1]), int(match[2])
        _check_counts(sorted({low, high}), WORKERS_MAX, "workers", listed=False)
        if low > high:
            raise fault(f"runs backwards: write {high}..{low}, not {shown(value)}")
        return tuple(range(low, high + 1))
    if isinstance(value, int) and not isinstance(value, bool):
        return _check_counts((value,), WORKERS_MAX, "workers", listed=False)
    raise fault(f"must be a range 1..4, a number or a list [1, 2, 4] of workers, not {shown(value)}")


_RANGE = r"([0-9]{1,18})\.\.([0-9]{1,18})"

WorkerCounts = Annotated[
    tuple[int, ...],
    PlainValidator(_parse_workers),
    PlainSerializer(list),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": f"^{_RANGE}$"},
                *_count_schemas(WORKERS_MAX),
            ]
        }
    ),
]


class BatchRange(FrozenModel):
    """Global batch sizes from `min` to `max`, both included: in steps of `step`, or by doubling if it is None."""

    min: int = Field(ge=1, le=BATCH_MAX, description="Smallest global batch size, samples.", examples=[64])
    max: int = Field(ge=1, le=BATCH_MAX, description="Largest global batch size, samples.", examples=[512])
    step: int | None = Field(
        default=None,
        ge=1,
        le=BATCH_MAX,
        description="Distance between sizes; without it, each doubles the last.",
    )

    @model_validator(mode="after")
    def _check(self) -> BatchRange:
        if self.min > self.max:
            raise fault(f"must be at least min ({self.min}), not {self.max}", "max")
        if self.step is not None and (self.max - self.min) // self.step >= CONFIGURATIONS_MAX:
            raise fault(f"gives more than {CONFIGURATIONS_MAX} batch sizes; make it larger", "step")
        return self

    def sizes(self) -> tuple[int, ...]:
        """The sizes, strictly increasing, from `min` to `max`; the last step may be smaller than the others."""
        if self.step is not None:
            below = tuple(range(self.min, self.max, self.step))
        else:
            doublings = range((self.max // self.min).bit_length())
            below = tuple(size for i in doublings if (size := self.min << i) < self.max)
        return (*below, self.max)


def _parse_batch_sizes(value: object) -> tuple[int, ...]:
    if isinstance(value, Mapping):
        return BatchRange.model_validate(value).sizes()
    if isinstance(value, list | tuple) and value:
        return _check_counts(value, BATCH_MAX, "samples", listed=True)
    if isinstance(value, int) and not isinstance(value, bool):
        return _check_counts((value,), BATCH_MAX, "samples", listed=False)
    match = re.fullmatch(_RANGE, value) if isinstance(value, str) else None
    low, high = match.groups() if match else ("64", "512")
    raise fault(f"must be {{min: {low}, max: {high}}} or a list [64, 128] of batch sizes, not {shown(value)}")


BatchSizes = Annotated[
    tuple[int, ...],
    PlainValidator(_parse_batch_sizes),
    PlainSerializer(list),
    WithJsonSchema(
        {
            "anyOf": [
                BatchRange.model_json_schema(),
                *_count_schemas(BATCH_MAX),
            ]
        }
    ),
]


def size_ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Read sizes as options give them: numbers and ranges such as `4`, `1..4` and `1,2,4..8`, or a list `[1, 2]`.

    Returns:
        The two ends of each range, as they come in the text; those of a number are equal.

    Raises:
        ValueError: If it is something else, or a range runs backwards.
    """
    listed = re.fullmatch(r"\s*\[(.*)\]\s*", text)
    found = []
    for part in (listed[1] if listed else text).split(","):
        match = re.fullmatch(r"\s*([0-9]{1,18})(?:\s*\.\.\s*([0-9]{1,18}))?\s*", part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= low <= high:
            raise ValueError(f"{shown(text)}: give positive whole numbers and ranges, such as 1,2,4 or 1..64")
        found.append((low, high))
    return tuple(found)


def workers_of_text(text: str) -> list[int]:
    """The cluster sizes of an option's text, as a list for `search.workers`.

    Raises:
        ValueError: As `size_ranges`, or if one is above `WORKERS_MAX`.
    """
    ranges = size_ranges(text)
    if (most := max(high for _, high in ranges)) > WORKERS_MAX:
        raise ValueError(f"{text}: must be from 1 to {WORKERS_MAX} workers, not {most}")
    return sorted({size for low, high in ranges for size in range(low, high + 1)})


def batch_sizes_of_text(text: str) -> list[int]:
    """The global batch sizes of an option's text, as a list for `search.batch_size`; ranges double, as `{min, max}`.

    Raises:
        ValueError: As `size_ranges`, or if one is above `BATCH_MAX`.
    """
    ranges = size_ranges(text)
    if (most := max(high for _, high in ranges)) > BATCH_MAX:
        raise ValueError(f"{text}: must be from 1 to {BATCH_MAX} samples, not {most}")
    return sorted({size for low, high in ranges for size in BatchRange(min=low, max=high).sizes()})
