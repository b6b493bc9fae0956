"""Indicators that jobs report of their steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import Field

from scavenger.api.calls import Local, call
from scavenger.api.forms import WHOLE, Cursor, JobKey, Limit
from scavenger.api.paging import encode, number_place
from scavenger.api.values import Answer, gathered
from scavenger.domain.indicators import BATCH_VALUES_MAX, COLUMNS_MAX

Step = Annotated[int, Field(strict=True, ge=0, lt=2**53), WHOLE]
Steps = Annotated[list[Step], Field(min_length=1, max_length=BATCH_VALUES_MAX)]
Columns = Annotated[
    dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")], list[float | None]],
    Field(min_length=1, max_length=COLUMNS_MAX, json_schema_extra={"additionalProperties": False}),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndicatorsTaken(Answer):
    """What was taken in.

    Attributes:
        taken: Values that were taken in.
        on_record: Values of the job on record.
    """

    taken: int
    on_record: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndicatorsAnswer:
    """A batch: one value of each indicator a step; null where a step has none."""

    id: int
    at: datetime
    steps: list[int]
    values: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndicatorsPage(Answer):
    """Batches of indicators, oldest first.

    Attributes:
        next: Cursor of the next page; null on the last.
    """

    batches: tuple[IndicatorsAnswer, ...]
    next: str | None


@call(
    "post",
    "jobs/{job}/indicators",
    tag="operations",
    summary="Report indicators",
    role="changer",
    status=202,
    repeats=False,  # a batch that was sent twice is refused
    body="IndicatorsRequest",
)
def add_indicators(at: Local, job: JobKey, steps: Steps, values: Columns) -> IndicatorsTaken:
    """Take in what a job's training reports of its steps, in batches; a batch that was sent twice is refused.

    Values are those of consecutive steps, by name: one number a step; null where a step has none.
    """
    record, count = at.find_job(job), len(steps) * len(values)
    columns = {
        name: [math.nan if value is None else value for value in column] for name, column in values.items()
    }
    on_record: int = at.write(lambda: at.store.add_indicators(record.id, steps, columns))
    at.count_indicators(count)
    return IndicatorsTaken(taken=count, on_record=on_record)


@call("get", "jobs/{job}/indicators", tag="operations", summary="Indicators of a job")
def list_indicators(at: Local, job: JobKey, limit: Limit = 10, cursor: Cursor = None) -> IndicatorsPage:
    """Batches of indicators, oldest first."""
    record = at.find_job(job)
    found = at.store.indicators(record.id, limit=limit + 1, after=number_place(cursor) or 0)
    batches = tuple(gathered(IndicatorsAnswer, one) for one in found[:limit])
    return IndicatorsPage(batches=batches, next=encode(batches[-1].id) if len(found) > limit else None)
