"""The values of the pages of VMs and of fitted models."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from scavenger.domain.intent import Intent
from scavenger.presentation.formatting import clean, money, quantity, size
from scavenger.presentation.panel import FINISHED
from scavenger.server.dashboard.job_page import VmLine, vm_lines
from scavenger.server.dashboard.words import Moment, moment
from scavenger.store.records import JobRecord, ModelRecord

__all__ = ["ModelLine", "ModelsPage", "VmsPage", "models_page", "vms_page"]

_ERRORS = ("time_s", "cost_usd", "step_time_s", "epochs")


@dataclass(frozen=True, slots=True)
class VmsPage:
    """VMs that are not gone, of all visible jobs.

    Attributes:
        rate: What they cost by the hour.
    """

    lines: tuple[VmLine, ...]
    rate: str
    at: Moment


@dataclass(frozen=True, slots=True)
class ModelLine:
    """One fitted model, with the errors of the predictions for jobs of its kind.

    Attributes:
        errors: Median absolute error of time, cost, step time and epochs, as text; `-` where no job has ended.
        jobs: Number of finished jobs behind them.
        note: Whether it was imported, or changed after it was written.
    """

    id: str
    job: str
    vm: str
    parameters: str
    samples: str
    goal: str
    evidence: str
    errors: tuple[str, str, str, str]
    jobs: int
    note: str
    damaged: bool
    fitted: Moment


@dataclass(frozen=True, slots=True)
class ModelsPage:
    """Fitted models, newest first."""

    lines: tuple[ModelLine, ...]
    more: int
    at: Moment


def vms_page(vms: Sequence[tuple[JobRecord, Sequence[Intent]]], now: datetime) -> VmsPage:
    """The page of VMs.

    Args:
        vms: Jobs with those of their VMs that are not gone.
        now: With a time zone.
    """
    lines = [
        replace(line, job_path=f"/jobs/{job.id}", job_name=clean(job.name))
        for job, intents in vms
        for line in vm_lines(intents, {}, now)
    ]
    rate = math.fsum(one.charges.price_usd_per_hour for _, intents in vms for one in intents)
    return VmsPage(tuple(lines), f"{money(rate)} per hour", moment(now, now))


def models_page(
    models: Sequence[ModelRecord],
    names: Mapping[str, str | None],
    jobs: Iterable[JobRecord],
    *,
    more: int,
    now: datetime,
) -> ModelsPage:
    """The page of fitted models.

    Args:
        models: Those of the page.
        names: Name of the job that fitted each, by its id; None if it is not known.
        jobs: Jobs whose predictions are compared with what came, by their fingerprint.
        more: Number of models that are not on the page.
        now: With a time zone.
    """
    errors: dict[str, list[tuple[float, ...]]] = {}
    for job in jobs:
        if job.fingerprint is not None and job.state in FINISHED and (found := _errors(job)):
            errors.setdefault(str(job.fingerprint), []).append(found)
    lines = []
    for model in models:
        known = errors.get(str(model.fingerprint), [])
        note = ("" if model.origin == "local" else model.origin) if model.intact else "changed, not used"
        lines.append(
            ModelLine(
                id=model.id[:8],
                job=clean(names.get(model.id) or "-"),
                vm=clean(model.fingerprint.vm),
                parameters=f"{model.fingerprint.parameters:,}",
                samples=f"{model.fingerprint.dataset_size:,} × {size(model.fingerprint.sample_bytes)}",
                goal=clean(model.fingerprint.goal) or "-",
                evidence=f"{model.measurements} measured, {model.runs} finished",
                errors=_medians(known),
                jobs=len(known),
                note=note,
                damaged=not model.intact,
                fitted=moment(model.created_at, now),
            )
        )
    return ModelsPage(tuple(lines), more, moment(now, now))


def _errors(job: JobRecord) -> tuple[float, ...] | None:
    """Predicted less actual, as shares of the actual values; None if one of them is not known."""
    if job.predicted is None or job.actual is None:
        return None
    pairs = [(float(getattr(job.predicted, name)), float(getattr(job.actual, name))) for name in _ERRORS]
    if not all(math.isfinite(a) and math.isfinite(b) and b > 0.0 for a, b in pairs):
        return None
    return tuple((predicted - actual) / actual for predicted, actual in pairs)


def _medians(errors: Sequence[tuple[float, ...]]) -> tuple[str, str, str, str]:
    if not errors:
        return ("-", "-", "-", "-")
    time, cost, step, epochs = (
        f"{quantity(100.0 * statistics.median(map(abs, column)), 2)} %"
        for column in zip(*errors, strict=True)
    )
    return time, cost, step, epochs
