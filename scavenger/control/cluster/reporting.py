"""What a leader tells of its job, as keys of the `status` of its ElasticJob."""

from __future__ import annotations

import math
from typing import Any

from scavenger.domain.progress import PROGRESS, Progress
from scavenger.domain.submission import Submission
from scavenger.store import Store
from scavenger.store.records import JobRecord

_HOUR_S = 3600.0


def report_of_job(store: Store, one: Submission | None, record: JobRecord | None) -> dict[str, Any]:
    """The report on a job; keys that are not known yet are left out.

    Args:
        store: Has the job.
        one: Its submission; None before.
        record: The job on record; None before its runner has begun.
    """
    if record is None:
        detail = "" if one is None else one.reason
        return {
            "state": "starting" if one is None or one.is_open else "failed",
            "detail": detail,
            "replicas": 0,
            "pods": 0,
        }
    workers = [
        process
        for process in ([] if record.ended else store.processes(record.id))
        if (process.role, process.state) == ("worker", "training")
    ]
    report: dict[str, Any] = {
        "state": record.state,
        "detail": _detail(store, record),
        "replicas": len(workers),
        "pods": len({process.host or process.process for process in workers}),
    }
    if record.step is not None:
        report["step"] = record.step
    if record.chosen is not None:
        report["chosen"] = {
            "workers": record.chosen.workers,
            "batchSize": record.chosen.global_batch_size,
            "size": record.chosen.vm,
            "reason": _reason(record),
        }
    if record.predicted is not None:
        report["predicted"] = _figures(record.predicted.time_s, record.predicted.cost_usd)
    if record.actual is not None:
        report["actual"] = _figures(record.actual.time_s, record.actual.cost_usd)
    elif record.cost_usd is not None:
        report["actual"] = _figures(None, record.cost_usd)
    return report


def _reason(record: JobRecord) -> str:
    """Why the configuration was chosen."""
    choice = (record.report or {}).get("choice") or {}
    objective = record.spec.get("objective", "knee")
    return str(choice.get("reason") or f"objective: {objective if isinstance(objective, str) else 'utility'}")


def _detail(store: Store, record: JobRecord) -> str:
    if record.ended:
        return record.error
    told = store.events(record.id, limit=1, kind=PROGRESS)
    progress = str(Progress.read(told[0].data)) if told else ""
    return progress or ": ".join(word for word in (record.phase, record.detail) if word)


def _figures(time_s: float | None, cost_usd: float) -> dict[str, float]:
    found = {"dollars": round(cost_usd, 4)} if math.isfinite(cost_usd) else {}
    if time_s is not None and math.isfinite(time_s):
        found["hours"] = round(time_s / _HOUR_S, 4)
    return found
