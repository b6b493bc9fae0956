"""The values of the page of one job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath

from scavenger.control.provisioning.bill import JobCost, VmCost
from scavenger.control.training.run_course import RunCourse
from scavenger.domain.document import traceback_of
from scavenger.domain.intent import Intent
from scavenger.domain.operation import describe
from scavenger.domain.progress import Progress
from scavenger.masking import mask
from scavenger.policy.provisioning.slots import is_for_aggregators
from scavenger.presentation.formatting import (
    beside_target,
    clean,
    difference,
    duration,
    duration_range,
    money,
    money_range,
    quantity,
    traceback_lines,
)
from scavenger.presentation.picture import FINISHED
from scavenger.presentation.total import total_words
from scavenger.server.dashboard.job_list import JobListLine, job_line
from scavenger.server.dashboard.words import Fact, JobLink, Moment, State, left_fact, link_of, moment
from scavenger.store.records import EventRecord, JobRecord, OperationRecord, ProcessRecord

VMS_SHOWN = 100
"""VMs of one job on its page; the API lists all."""


@dataclass(frozen=True, slots=True)
class JobSight:
    """What is known of a job at a moment.

    Attributes:
        job: Its record, with its report if it has ended.
        events: The latest, oldest first, without those that report progress.
        intents: Its VMs.
        cost: Its bill up to now.
        course: The course of its run; empty where its journal cannot be read.
        reachable: Whether its folder, with the journal, is on this machine.
        at: The moment, with a time zone.
        resumable: Whether it can be submitted again, to go on from its checkpoint.
    """

    job: JobRecord
    progress: Progress | None
    processes: tuple[ProcessRecord, ...]
    operations: tuple[OperationRecord, ...]
    events: tuple[EventRecord, ...]
    intents: tuple[Intent, ...]
    cost: JobCost
    course: RunCourse
    reachable: bool
    at: datetime
    resumable: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """A predicted value beside the actual one; `-` where one is not known."""

    name: str
    predicted: str
    interval: str
    actual: str
    off_by: str


@dataclass(frozen=True, slots=True)
class VmLine:
    """One VM: its place, age and cost."""

    name: str
    type: str
    zone: str
    role: str
    kind: str
    state: State
    age: str
    price: str
    cost: str
    ending: str
    job: JobLink | None = None


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """One process of the job."""

    name: str
    role: str
    state: str
    bad: bool
    host: str
    step: str
    view: str
    detail: str


@dataclass(frozen=True, slots=True)
class EventLine:
    """One event."""

    at: Moment
    kind: str
    level: str
    message: str


@dataclass(frozen=True, slots=True)
class OperationLine:
    """One operation that was requested of the job."""

    at: Moment
    what: str
    state: str
    answer: str


@dataclass(frozen=True, slots=True)
class JobPage:
    """The page of one job, besides its tables.

    Attributes:
        facts: What it is and how far it is.
        total: What the whole costs and takes by its prediction, until that has come; empty before the choice.
        to_submit: The job file of a plan, which this user may submit as a run; empty otherwise.
        choice: The chosen configuration and why, and where the job moved since; empty before.
        can_operate: Whether it can be scaled and stopped now.
        can_resume: Whether it can be resumed now.
        pending: Number of the operation that it has not started, which can be withdrawn; None if there is none.
        workers: Workers in effect; 1 if unknown.
        no_journal: Why there are no pictures of the run; empty if there are, or may come.
        traceback: Lines of the user's code where it failed, with files as named from the job file; empty otherwise.
    """

    line: JobListLine
    facts: tuple[Fact, ...]
    total: str
    to_submit: str
    choice: str
    can_operate: bool
    can_resume: bool
    pending: int | None
    workers: int
    no_journal: str
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobTables:
    """The tables of a job's page.

    Attributes:
        compared: Predicted and actual values; empty before the choice.
        why_off: Causes of the error of the predicted time.
        items: What was paid or counted, item by item.
        known: How the cost is known.
        files: Paths, on the machine that runs the job.
    """

    job: JobLink
    compared: tuple[Compared, ...]
    why_off: str
    items: tuple[Fact, ...]
    known: str
    vms: tuple[VmLine, ...]
    more_vms: int
    processes: tuple[ProcessLine, ...]
    operations: tuple[OperationLine, ...]
    files: tuple[Fact, ...]
    events: tuple[EventLine, ...]


def job_page(sight: JobSight, *, may_change: bool = True) -> JobPage:
    """The values of a job's page, for a user who may change jobs or not."""
    job = sight.job
    line = job_line(job, sight.progress, alive=sight.cost.alive, now=sight.at)
    at = sight.progress.configuration if sight.progress is not None else job.chosen
    return JobPage(
        line=line,
        facts=tuple(fact for fact in facts_of(sight) if fact.value),
        total=_total_words(sight),
        to_submit=job.job_file if job.state == "planned" and may_change else "",
        choice=_choice_words(sight),
        can_operate=line.state.live and may_change,
        can_resume=sight.resumable and may_change,
        pending=next((one.id for one in sight.operations if one.state == "pending"), None)
        if may_change
        else None,
        workers=1 if at is None else at.workers,
        no_journal=_no_journal(sight),
        traceback=tuple(traceback_lines(traceback_of(job.report), str(PurePath(job.job_file).parent))),
    )


def job_tables(sight: JobSight) -> JobTables:
    """The values of the tables of a job's page."""
    job, now = sight.job, sight.at
    vms = vm_lines(sight.intents, {vm.instance_id: vm for vm in sight.cost.vms if vm.instance_id}, now)
    return JobTables(
        job=link_of(job),
        compared=tuple(_compared(job)),
        why_off=_why_off(job),
        items=tuple(Fact(clean(one.name), money(one.usd), clean(one.how)) for one in sight.cost.items),
        known=clean(sight.cost.how),
        vms=tuple(vms[:VMS_SHOWN]),
        more_vms=max(0, len(vms) - VMS_SHOWN),
        processes=tuple(_process_line(one) for one in sight.processes if _is_shown(one, job)),
        operations=tuple(_operation_line(one, now) for one in reversed(sight.operations)),
        files=tuple(Fact(name, clean(path)) for name, path in _files(job) if path),
        events=tuple(
            EventLine(moment(one.at, now), clean(one.kind), one.level, mask(clean(one.message)))
            for one in reversed(sight.events)
        ),
    )


def facts_of(sight: JobSight) -> Iterator[Fact]:
    """What a job is and how far it is; facts that are not known have no value."""
    job, progress = sight.job, sight.progress
    phase = f"{job.phase}: {clean(job.detail)}" if job.detail else job.phase
    yield Fact("Phase", "" if job.ended else clean(phase))
    yield Fact("Trains on" if not job.ended else "Trained on", _configuration_words(sight))
    if progress is not None:
        epochs = progress.epochs_interval
        of_about = "" if epochs is None or job.ended else f"of {epochs[0]:.0f}-{epochs[1]:.0f} (90 %)"
        yield Fact("Epoch", f"{progress.epoch + 1:,}", of_about)
        if progress.value is not None:
            value, target = beside_target(progress.value, progress.target)
            yield Fact(clean(progress.metric), value, f"target {target}" if target else "")
        yield Fact("Loss", quantity(progress.loss, 4))
        left = None if job.ended else left_fact(progress.left_s, progress.left_interval_s)
        if left is not None:
            yield left
    yield Fact("Step", "" if job.step is None else f"{job.step:,}")
    yield Fact(
        "Cost" if job.ended else "Cost so far",
        "" if sight.cost.actual_usd is None else money(sight.cost.actual_usd),
    )
    ended = job.ended_at or sight.at
    took = duration(float(round((ended - job.created_at).total_seconds())))
    began = f"began {moment(job.created_at, sight.at).words}"
    yield Fact("Took" if job.ended else "Running for", took, began)
    yield Fact("Attempt", "" if job.attempts == 1 else str(job.attempts))
    yield Fact("Owner", clean(job.owner.account))


def _files(job: JobRecord) -> tuple[tuple[str, str | None], ...]:
    return (
        ("Job file", job.job_file),
        ("Model", job.model_path),
        ("Measurements", job.measurements_path),
        ("Checkpoint", job.checkpoint),
    )


def _configuration_words(sight: JobSight) -> str:
    at = sight.progress.configuration if sight.progress is not None else sight.job.chosen
    return "" if at is None else clean(at)


def _choice_words(sight: JobSight) -> str:
    report = sight.job.report or sight.course.report
    if report is not None and report.get("infeasible"):
        return f"Nothing was chosen: {clean(report['infeasible'].get('reason', ''))}"
    if sight.job.chosen is None:
        return ""
    reason = ""
    if report is not None and report.get("choice"):
        reason = f" ({clean(report['choice'].get('reason', ''))})"
    moved = None if sight.progress is None else sight.progress.moved
    then = "" if moved is None else f". Moved {clean(moved)}"
    return f"Chosen: {clean(sight.job.chosen)}{reason}{then}"


def _total_words(sight: JobSight) -> str:
    job = sight.job
    if job.predicted is None or (job.ended and job.state != "planned"):
        return ""
    info = (job.report or sight.course.report or {}).get("curve_info") or {}
    return total_words(job.predicted, relative_only=bool(info.get("relative_only")))


def _compared(job: JobRecord) -> Iterator[Compared]:
    """Predicted beside actual values; errors only of a run that reached the end for which they were predicted."""
    predicted, actual = job.predicted, job.actual
    if predicted is None and actual is None:
        return
    finished = job.state in FINISHED
    rows = (
        ("Time", duration, "time_s", "" if predicted is None else duration_range(*predicted.time_interval_s)),
        ("Cost", money, "cost_usd", "" if predicted is None else money_range(*predicted.cost_interval_usd)),
        ("Step time", duration, "step_time_s", ""),
        ("Epochs in all", quantity, "epochs", ""),
    )
    for name, words, field, interval in rows:
        expected = None if predicted is None else float(getattr(predicted, field))
        came = None if actual is None else float(getattr(actual, field))
        yield Compared(
            name,
            "-" if expected is None else words(expected),
            interval,
            "-" if came is None else words(came),
            difference(expected, came) if expected is not None and came is not None and finished else "-",
        )


def _why_off(job: JobRecord) -> str:
    """The causes of the error of the predicted time; empty if it cannot be split."""
    error = None if job.report is None else job.report.get("time_error")
    if not error or job.actual is None or job.state not in FINISHED or job.actual.time_s <= 0.0:
        return ""
    whole_s = job.actual.time_s
    parts = (
        ("epochs", error["from_epochs_s"]),
        ("step time", error["from_step_time_s"]),
        ("the rest (starts, evaluations, changes of configuration, the end)", error["from_other_s"]),
    )
    causes = ", ".join(f"{100.0 * part_s / whole_s:+.1f} % from {name}" for name, part_s in parts)
    return f"The predicted time was off by {100.0 * error['whole_s'] / whole_s:+.1f} %: {causes}."


def vm_lines(intents: Sequence[Intent], paid: Mapping[str, VmCost], now: datetime) -> list[VmLine]:
    """The VMs of one job, newest first, with age and cost; what each cost by `paid`, else as counted so far."""
    lines = []
    for intent in reversed(intents):
        billed, times = paid.get(intent.instance_id), intent.times
        began = times.launched_at or times.created_at
        ended = times.ended_at if intent.state == "GONE" else None
        age_s = None if began is None else ((ended or now) - began).total_seconds()
        usd = intent.charges.cost_usd if billed is None else billed.cost_usd
        lines.append(
            VmLine(
                name=clean(intent.instance_id) or "(no answer yet)",
                type=clean(intent.request.vm),
                zone=clean(intent.request.zone),
                role="aggregator" if is_for_aggregators(intent.slot) else "worker",
                kind="spot" if intent.request.spot else "on demand",
                state=State(_VM_STATES[intent.state], "idle" if intent.state == "GONE" else "live"),
                age="-" if age_s is None else duration(float(round(max(0.0, age_s)))),
                price=f"{money(intent.charges.usd_per_hour)}/h",
                cost=money(usd),
                ending=clean(intent.reason or intent.ending.replace("_", " ")),
            )
        )
    return lines


_VM_STATES = {"PLAN": "requested", "UP": "running", "DELETING": "being deleted", "GONE": "gone"}


def _is_shown(process: ProcessRecord, job: JobRecord) -> bool:
    """Of a job that has ended, only the processes that explain its end."""
    return not job.ended or process.state in ("lost", "failed")


def _process_line(process: ProcessRecord) -> ProcessLine:
    return ProcessLine(
        name=clean(process.process),
        role=process.role,
        state=process.state,
        bad=process.state in ("lost", "failed"),
        host=clean(process.host or "-"),
        step="-" if process.step is None else f"{process.step:,}",
        view="-" if process.view is None else str(process.view),
        detail=clean(process.detail),
    )


def _operation_line(record: OperationRecord, now: datetime) -> OperationLine:
    answer = clean(record.message) or f"asked by {clean(record.requested_by)}"
    return OperationLine(
        moment(record.requested_at, now), clean(describe(record.operation)), record.state, answer
    )


def _no_journal(sight: JobSight) -> str:
    if sight.course.steps or sight.course.epochs:
        return ""
    if not sight.reachable:
        return f"The journal of this run is not on this machine; it was written on {clean(sight.job.owner.host)}."
    if sight.job.ended:
        return "This run has no step on record."
    return "No step yet: the first ones come when workers have started."
