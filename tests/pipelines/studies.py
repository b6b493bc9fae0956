"""Puts trials of studies on record, as their jobs leave them."""

from __future__ import annotations

from typing import Any

from scavenger import Job
from scavenger.domain.document import report_document
from scavenger.domain.report import (
    Actual,
    MetricOutcome,
    Predicted,
    ReportedJob,
    RunReport,
    SearchOutcome,
    TrainingResult,
)
from scavenger.store import Store


def put_on_record(
    url: str,
    job: Job,
    value: float,
    *,
    study: str = "rates",
    state: Any = "succeeded",
    usd: float = 0.1,
    error: str = "",
    code: int = 0,
) -> str:
    """Put a trial on record, with its best value of val_loss; returns its id."""
    spec = job.with_settings({"name": study, "search.strategy": "reuse"}).spec
    with Store.open(url) as store:
        made = store.create_job(study, spec=spec.written(), job_file=job.path)
        report = RunReport(
            ReportedJob(made.id, study, state),
            SearchOutcome("none", "a model is stored", (), 0.0, 0.0),
            predicted=Predicted(9.0, (5.0, 12.0), usd * 1.1, (usd, 2 * usd), 0.01, 3.0),
            result=TrainingResult(
                Actual(8.0, usd, 0.01, 3.0), MetricOutcome("val_loss", value, None, False), 60
            ),
            error=error,
            exit_code=code,
        )
        store.finish_job(
            made.id, state=state, report=report_document(report), exit_code=code, cost_usd=usd,
            predicted=report.predicted, actual=report.result.actual,
        )  # fmt: skip
        return made.id
