"""The forms of requests and answers, for validation and for the OpenAPI document.

Answers are made by `scavenger.api`, as for commands; these classes only describe them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from scavenger.control.provisioning.bill import JobCost
from scavenger.domain.elastic import AGGREGATORS_MAX
from scavenger.domain.environment import NAME
from scavenger.domain.indicators import BATCH_VALUES_MAX, COLUMNS_MAX
from scavenger.domain.job import EPOCHS_MAX
from scavenger.domain.operation import REASON_MAX, REASON_PATTERN
from scavenger.domain.ranges import WORKERS_MAX
from scavenger.store.records import (
    EventRecord,
)

Anything = dict[str, Any]
WorkerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def _whole(value: object) -> object:
    """`2.0` is a whole number of JSON; `"2"` and `true` are not."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# the bounds stand inside, where the document shows them
Workers = Annotated[int, Field(strict=True, ge=1, le=WORKERS_MAX), BeforeValidator(_whole)]
Aggregators = Annotated[int, Field(strict=True, ge=1, le=AGGREGATORS_MAX), BeforeValidator(_whole)]
Epochs = Annotated[int, Field(strict=True, ge=1, le=EPOCHS_MAX), BeforeValidator(_whole)]
Priority = Annotated[int, Field(strict=True, ge=-1000, le=1000), BeforeValidator(_whole)]
Days = Annotated[int, Field(strict=True, ge=1, le=3650), BeforeValidator(_whole)]
Step = Annotated[int, Field(strict=True, ge=0, lt=2**53), BeforeValidator(_whole)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Answer(BaseModel):
    schema_version: int


# ---- jobs --------------------------------------------------------------------------------------------------------


class LogsAnswer(_Answer):
    job: Anything
    folder: str
    events: list[EventRecord]
    logs: dict[str, list[str]]
    elsewhere: str = Field(description="Begin of a sentence if the logs are on another machine; else empty.")
    over: bool = Field(description="Whether nothing more will come.")
    next: str = Field(description="Cursor of what comes after this.")


class PlanAnswer(_Answer):
    """What was profiled, predicted and chosen; see the report of `scavenger plan JOB.yaml -o json`."""

    job: Anything
    search: Anything
    choice: Anything | None
    infeasible: Anything | None
    predicted: Anything | None
    estimate: Anything | None
    warnings: list[str]


class CurveAnswer(_Answer):
    """As `scavenger curves JOB -f json`."""

    job: Anything
    choice: Anything | None
    infeasible: Anything | None
    curve: list[Anything] | None
    curve_info: Anything | None
    predicted: Anything | None
    actual: Anything | None
    time_error: Anything | None


class WhyAnswer(_Answer):
    """As `scavenger curves JOB --why K B -o json`."""

    job: Anything
    model: Anything
    predictions: list[Anything] = Field(description="One for each VM type on which steps were measured.")


class CostAnswer(_Answer):
    job: JobCost


class CostsPage(_Answer):
    jobs: list[JobCost]
    next: str | None


Variables = Annotated[
    dict[
        Annotated[str, Field(pattern=rf"^{NAME}$", max_length=200)], Annotated[str, Field(max_length=1 << 16)]
    ],
    Field(max_length=200, json_schema_extra={"additionalProperties": False}),
]


StudyBudget = Annotated[
    float | None,
    Field(
        gt=0.0,
        allow_inf_nan=False,
        description="Budget of all jobs of this name and user, US dollars: the job gets at most what is left.",
    ),
]


class _JobRequest(_Request):
    """A job file on the server's machine, as `scavenger optimize JOB.yaml` takes it."""

    job_file: str = Field(min_length=1, max_length=4096, description="Absolute path on the server's machine.")
    objective: Literal["time", "cost", "knee"] | None = None
    strategy: Literal["auto", "reuse", "full", "partial", "extremes", "none", "universal"] | None = None
    budget: str | None = Field(default=None, max_length=40, description="US dollars, as `$20`.")
    deadline: str | None = Field(default=None, max_length=40, description="As `8h` or `90m`.")
    workers: str | None = Field(default=None, max_length=200, description="As `4`, `1..4` or `1,2,4`.")
    batch_size: str | None = Field(default=None, max_length=200, description="As `32,64` or `32..256`.")
    audit: bool = False
    priority: Priority = 0
    run: bool = Field(default=True, description="False: as of `scavenger plan`, which ends with the choice.")
    environment: Variables = Field(
        default={},
        description="Values of variables that the job file names, in place of the server's own.",
    )


class SubmitRequest(_JobRequest):
    """A job file on the server's machine, as `scavenger optimize JOB.yaml --detach` takes it."""

    study_budget: StudyBudget = None


class PreviewRequest(_JobRequest):
    yes: bool = Field(default=True, description="Whether every question would be answered with yes.")


class PreviewAnswer(_Answer):
    """What a job would do; see `scavenger optimize JOB.yaml --dry-run -o json`."""

    dry_run: bool
    name: str
    job_file: str
    rows: list[list[str]] = Field(description="Names and words of what is shown to people.")
    job: Anything
    configurations: int
    offers: list[Anything]
    aggregators: Anything | None
    notes: list[str]
    profile: Anything
    constraints: Anything
    runs: bool
    asks: bool


class ScaleTo(_Request):
    workers: Workers = Field(description="Train with so many workers.")


class ScaleOut(_Request):
    add: Workers = Field(description="Add so many workers.")


class ScaleIn(_Request):
    remove: list[WorkerName] = Field(min_length=1, max_length=1000, description="Remove these workers.")


class ScaleAggregators(_Request):
    aggregators: Aggregators = Field(description="Have the first so many aggregators hold the model.")


ScaleRequest = ScaleTo | ScaleOut | ScaleIn | ScaleAggregators


class MigrateRequest(_Request):
    workers: list[WorkerName] | None = Field(
        default=None, min_length=1, max_length=1000, description="Replace these; null: all."
    )


class StopRequest(_Request):
    save: bool = Field(default=True, description="Save the model as trained so far.")
    reason: str = Field(
        default="",
        max_length=REASON_MAX,
        pattern=REASON_PATTERN,
        description="Why, in one line for the record; by default who asked.",
    )


class ResumeRequest(_Request):
    """In place of the job's own. Limits are those of all attempts together, and not below its own."""

    audit: bool = False
    budget: str | None = Field(default=None, max_length=40, description="US dollars, as `$20`.")
    deadline: str | None = Field(default=None, max_length=40, description="As `8h` or `90m`.")
    max_epochs: Epochs | None = Field(
        default=None, description="`goal.max_epochs`, for a missed target, say."
    )
    output: str | None = Field(
        default=None,
        min_length=1,
        max_length=4000,
        description="Folder on the server's machine, absolute or relative to the job file, to which what the job has "
        "written goes, and where it goes on.",
    )
    study_budget: StudyBudget = None
    environment: Variables = Field(
        default={},
        description="Values of the job's secrets, in place of those that it had and the server's own.",
    )


# ---- indicators --------------------------------------------------------------------------------------------------

Steps = Annotated[list[Step], Field(min_length=1, max_length=BATCH_VALUES_MAX)]
Columns = Annotated[
    dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")], list[float | None]],
    Field(min_length=1, max_length=COLUMNS_MAX, json_schema_extra={"additionalProperties": False}),
]


class IndicatorsRequest(_Request):
    """Values of consecutive steps, by name: one number a step; null where a step has none."""

    steps: Steps
    values: Columns


class IndicatorsTaken(_Answer):
    taken: int = Field(description="Values that were taken in.")
    on_record: int = Field(description="Values of the job on record.")


class IndicatorsAnswer(BaseModel):
    """A batch: one value of each indicator a step; null where a step has none."""

    id: int
    at: datetime
    steps: list[int]
    values: dict[str, list[float | None]]


class IndicatorsPage(_Answer):
    batches: list[IndicatorsAnswer]
    next: str | None
