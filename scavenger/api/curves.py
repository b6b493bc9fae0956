"""The tradeoff curve of a job, as `scavenger curves JOB -f json` writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scavenger.domain.document import report_document, report_from_document
from scavenger.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from scavenger.domain.report import RunReport
    from scavenger.store.records import JobRecord

_OF_A_JOB = (
    "schema_version",
    "job",
    "choice",
    "infeasible",
    "curve",
    "curve_info",
    "predicted",
    "actual",
    "time_error",
)
_OF_A_PLAN = ("schema_version", "job", "search", "choice", "infeasible", "predicted", "estimate", "warnings")


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


def curve_document(report: RunReport) -> dict[str, Any]:
    """The curve, the choice, and predicted and actual figures."""
    whole = report_document(report)
    return {name: whole[name] for name in _OF_A_JOB}


def plan_document(report: RunReport) -> dict[str, Any]:
    """What was profiled, predicted and chosen."""
    whole = report_document(report)
    return {name: whole[name] for name in _OF_A_PLAN}
