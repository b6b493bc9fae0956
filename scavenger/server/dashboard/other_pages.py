"""The values of the pages of VMs and of fitted models."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from scavenger.domain.intent import Intent
from scavenger.domain.restore import QuarantinedVm, Restore
from scavenger.presentation.formatting import clean, money, quantity, size, when
from scavenger.presentation.picture import FINISHED
from scavenger.server.dashboard.job_page import VmLine, vm_lines
from scavenger.server.dashboard.words import Moment, State, link_of, moment
from scavenger.store.records import JobRecord, ModelRecord

_ERRORS = ("time_s", "cost_usd", "step_time_s", "epochs")


@dataclass(frozen=True, slots=True)
class QuarantineLine:
    """A VM that the store does not know since it was restored.

    Attributes:
        key: Names it in forms.
        job: The beginning of its job's id, by its tag.
        since: Its start; None if the cloud does not report it.
        decided: Whether it stays, and who says so.
    """

    key: str
    name: str
    type: str
    where: str
    job: str
    since: Moment | None
    decided: str
    kept: bool


@dataclass(frozen=True, slots=True)
class VmsPage:
    """VMs that are not gone, of all visible jobs.

    Attributes:
        rate: What they cost by the hour.
        quarantined: As of the last look at the clouds.
        restored: Why VMs are in quarantine, in words; empty if the store was never restored.
        decides: Whether who looks may end and keep them.
    """

    lines: tuple[VmLine, ...]
    rate: str
    at: Moment
    quarantined: tuple[QuarantineLine, ...] = ()
    restored: str = ""
    decides: bool = False


@dataclass(frozen=True, slots=True)
class ModelLine:
    """One fitted model, with the errors of the predictions for jobs of its kind.

    Attributes:
        errors: Median absolute error of time, cost, step time and epochs, as text; `-` where no job has ended.
        jobs: Number of finished jobs behind them.
        note: That it was imported, or changed after it was written; None if neither.
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
    note: State | None
    fitted: Moment


@dataclass(frozen=True, slots=True)
class ModelsPage:
    """Fitted models, newest first."""

    lines: tuple[ModelLine, ...]
    more: int
    at: Moment


def vms_page(
    vms: Sequence[tuple[JobRecord, Sequence[Intent]]],
    now: datetime,
    *,
    restore: Restore | None = None,
    quarantined: Sequence[QuarantinedVm] = (),
    decides: bool = False,
) -> VmsPage:
    """The page of VMs.

    Args:
        vms: Jobs with those of their VMs that are not gone.
        now: With a time zone.
        restore: The last restore from a backup; None if there was none, or who looks sees only their own jobs.
        quarantined: VMs that the store does not know since.
        decides: Whether who looks may end and keep them.
    """
    lines = [replace(line, job=link_of(job)) for job, intents in vms for line in vm_lines(intents, {}, now)]
    rate = math.fsum(one.charges.usd_per_hour for _, intents in vms for one in intents)
    return VmsPage(
        tuple(lines),
        f"{money(rate)} per hour",
        moment(now, now),
        tuple(_quarantine_line(one, now) for one in quarantined),
        "" if restore is None else _restored(restore, now),
        decides,
    )


def _quarantine_line(vm: QuarantinedVm, now: datetime) -> QuarantineLine:
    return QuarantineLine(
        vm.key,
        clean(vm.instance_id),
        clean(vm.vm),
        clean(f"{vm.provider}/{vm.zone}"),
        clean(vm.job_id[:8]) or "-",
        None if vm.launched_at is None else moment(vm.launched_at, now),
        f"stays, says {clean(vm.kept_by)}" if vm.kept_by else "not yet",
        bool(vm.kept_by),
    )


def _restored(restore: Restore, now: datetime) -> str:
    looked = (
        "" if restore.looked_at is None else f" The clouds were asked {moment(restore.looked_at, now).ago}."
    )
    return (
        f"The store was restored from its backup of {when(restore.backup_at)}. VMs that it does not know may train "
        f"jobs that were begun after that, so none is ended before somebody decides so.{looked}"
    )


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
        note = None if model.origin == "local" else State(model.origin, "idle")
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
                note=note if model.intact else State("changed, not used", "bad"),
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
