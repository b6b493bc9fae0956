"""The tradeoff curve of a job, as `scavenger curves JOB -f json` writes it, and its plan."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from scavenger.api.calls import Local, call
from scavenger.api.forms import JobKey
from scavenger.api.values import Answer
from scavenger.domain.document import Document, report_document, report_from_document
from scavenger.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from scavenger.domain.report import RunReport
    from scavenger.store.records import JobRecord

A = TypeVar("A", bound=Answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer(Answer):
    """What was profiled, predicted and chosen; see the report of `scavenger plan JOB.yaml -o json`."""

    job: Document
    search: Document
    choice: Document | None
    infeasible: Document | None
    predicted: Document | None
    estimate: Document | None
    warnings: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveAnswer(Answer):
    """As `scavenger curves JOB -f json`."""

    job: Document
    choice: Document | None
    infeasible: Document | None
    curve: list[Document] | None
    curve_info: Document | None
    predicted: Document | None
    actual: Document | None
    time_error: Document | None


def report_with_curve(job: JobRecord) -> RunReport:
    """The report of a job.

    Raises:
        ConfigurationError: The job has no curve.
        StoreError: Its report cannot be read.
    """
    if job.report is None or job.report.get("curve") is None:
        raise ConfigurationError(f"job {job.name} ({job.id[:8]}) has no curve: it is {job.state}")
    try:
        return report_from_document(job.report)
    except ValueError as error:
        raise StoreError(f"the stored report of job {job.id[:8]} cannot be read: {error}") from error


def part_of(report: RunReport, kind: type[A]) -> A:
    """The fields of a report's document that an answer has."""
    whole = report_document(report)
    return kind(**{field.name: whole[field.name] for field in fields(kind)})


@call("get", "jobs/{job}/plan", tag="jobs", summary="What was predicted and chosen")
def show_plan(at: Local, job: JobKey) -> PlanAnswer:
    """What was profiled, predicted and chosen, from the report of the job."""
    return part_of(report_with_curve(at.find_job(job)), PlanAnswer)


@call("get", "jobs/{job}/curve", tag="jobs", summary="The tradeoff curve")
def show_curve(at: Local, job: JobKey) -> CurveAnswer:
    """Every configuration with its predicted time and cost; the choice; predicted and actual figures."""
    return part_of(report_with_curve(at.find_job(job)), CurveAnswer)
