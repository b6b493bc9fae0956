"""The values of the pages that ask before something changes: an operation on a job, or a submission."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from scavenger.api.preview import preview_rows
from scavenger.control.jobs.prepared import PreparedJob
from scavenger.domain.document import report_from_document
from scavenger.domain.job import EPOCHS_MAX
from scavenger.domain.operation import Migrate, Operation, ScaleTo, StopJob, describe
from scavenger.domain.overrides import Renewal
from scavenger.domain.ranges import WORKERS_MAX
from scavenger.domain.restore import QuarantinedVm
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import clean, duration, duration_range, money, money_range, plural
from scavenger.server.dashboard.job_page import JobSight
from scavenger.server.dashboard.words import Fact
from scavenger.store.records import JobRecord


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A question before an operation.

    Attributes:
        what: What is asked for.
        consequence: What is known of what follows from it.
        fields: What the form sends back if the answer is yes.
        danger: Whether the operation ends something.
        inputs: What may be filled in.
    """

    what: str
    consequence: str
    button: str
    fields: Mapping[str, str]
    danger: bool = False
    inputs: tuple[Input, ...] = ()


@dataclass(frozen=True, slots=True)
class Input:
    """A field of a form that may be left empty.

    Attributes:
        name: Of the form's field.
        label: What it is.
        hint: What stands in it while it is empty.
        required: Whether it must be filled in.
        length: The most characters of it.
    """

    name: str
    label: str
    hint: str
    required: bool = False
    length: int = 40


def renewal_of(form: Mapping[str, str]) -> Renewal:
    """What a form gives a job in place of its own.

    Raises:
        ConfigurationError: If its epochs are no number.
    """
    text = form.get("max_epochs", "").strip()
    if text and not (text.isascii() and text.isdigit() and len(text) <= len(str(EPOCHS_MAX))):
        raise ConfigurationError(f"the epochs must be a whole number from 1 to {EPOCHS_MAX:,}")
    return Renewal(
        form.get("budget", "").strip() or None,
        form.get("deadline", "").strip() or None,
        int(text) if text else None,
        form.get("output", "").strip() or None,
    )


def _renewal_inputs(job: JobRecord) -> tuple[Input, ...]:
    own, goal = job.spec.get("constraints") or {}, job.spec.get("goal") or {}
    budget, deadline, epochs = own.get("budget"), own.get("deadline"), goal.get("max_epochs")
    return (
        Input("budget", "Budget", "none" if budget is None else money(budget)),
        Input("deadline", "Deadline", "none" if deadline is None else duration(deadline)),
        Input(
            "max_epochs",
            "Most epochs",
            "" if epochs is None else f"{epochs:,}",
            required=job.state == "target_missed",
        ),
        Input("output", "Output folder", clean(str(job.spec.get("output") or ".scavenger")), length=4000),
    )


def operation_of(form: Mapping[str, str]) -> Operation:
    """The operation that a form asks for.

    Raises:
        ConfigurationError: If it asks for none, or for an impossible number of workers.
    """
    match form.get("what"):
        case "stop":
            return StopJob()
        case "migrate":
            return Migrate()
        case "scale":
            text = form.get("workers", "").strip()
            if not (
                text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= WORKERS_MAX and len(text) < 9
            ):
                raise ConfigurationError(f"workers must be a whole number from 1 to {WORKERS_MAX:,}")
            return ScaleTo(int(text))
    raise ConfigurationError("nothing was asked for; go back to the job")


def confirmation_of(sight: JobSight, form: Mapping[str, str]) -> Confirmation:
    """The question before what a form asks for is done to a job.

    Raises:
        ConfigurationError: If it asks for nothing, or for what the job cannot do now.
    """
    name = clean(sight.job.name)
    if form.get("what") == "resume":
        return Confirmation(
            what=f"Resume {name}",
            consequence="It waits in the queue for its turn, and goes on from its last checkpoint. "
            "What it has cost so far still counts. Limits can be raised here, and the output can go to a folder with "
            "more room; what is left empty stays as it is.",
            button="Resume the job",
            fields={"what": "resume"},
            inputs=_renewal_inputs(sight.job),
        )
    if form.get("what") == "withdraw":
        asked = next((one for one in sight.operations if str(one.id) == form.get("operation")), None)
        if asked is None or asked.state != "pending":
            raise ConfigurationError("the job has started it meanwhile, or nothing was asked for")
        return Confirmation(
            what=f"Withdraw the request to {clean(describe(asked.operation))}: {name}",
            consequence="The job has not started it. Nothing is changed then.",
            button="Withdraw the request",
            fields={"what": "withdraw", "operation": str(asked.id)},
        )
    operation = operation_of(form)
    if isinstance(operation, ScaleTo):
        count = operation.workers
        return Confirmation(
            what=f"{describe(operation).capitalize()}: {name}",
            consequence=_after_scaling(sight, count),
            button=f"Scale to {count:,}",
            fields={"what": "scale", "workers": str(count)},
        )
    if isinstance(operation, Migrate):
        return Confirmation(
            what=f"Migrate every worker: {name}",
            consequence="New workers are started, on new VMs if it rents some, and take over within one step; the old "
            "ones end then. Until then both cost money.",
            button="Migrate the workers",
            fields={"what": "migrate"},
        )
    return Confirmation(
        what=f"Stop {name}",
        consequence="It ends after the step in progress, saves its model and a checkpoint, and ends its VMs. "
        "`scavenger resume` can go on from there.",
        button="Stop the job",
        fields={"what": "stop"},
        danger=True,
    )


def cancellation_of(name: str) -> Confirmation:
    """The question before a job that waits is withdrawn from the queue."""
    return Confirmation(
        what=f"Withdraw {clean(name)} from the queue",
        consequence="It has not begun, and does not begin then. The job file stays; it can be submitted again.",
        button="Withdraw the job",
        fields={"what": "cancel"},
        danger=True,
    )


def ending_of(vm: QuarantinedVm) -> Confirmation:
    """The question before a VM in quarantine is ended."""
    of_job = f" It has the tag of job {clean(vm.job_id[:8])}, and may train it." if vm.job_id else ""
    return Confirmation(
        what=f"End {clean(vm.instance_id)}",
        consequence=f"{clean(vm.vm)} in {clean(vm.zone)}: the store does not know what it does.{of_job} "
        "What is on its disk is lost.",
        button="End the VM",
        fields={"what": "end", "vm": vm.key},
        danger=True,
    )


def keeping_of(vm: QuarantinedVm) -> Confirmation:
    """The question before a VM in quarantine is kept."""
    return Confirmation(
        what=f"Keep {clean(vm.instance_id)}",
        consequence="It goes on, costs money, and is no leftover any more. It ends itself if no process renews it; its "
        "end can be asked for here later.",
        button="Keep the VM",
        fields={"what": "keep", "vm": vm.key},
    )


def _after_scaling(sight: JobSight, workers: int) -> str:
    """What the curve predicts with this many workers, for a whole run."""
    progress = sight.progress
    report = sight.job.report if (sight.job.report or {}).get("curve") else sight.course.report
    if progress is None:
        return "The job has made no step yet; what the change means is not known."
    now = progress.configuration
    begin = f"It trains on {clean(now)} now. "
    unknown = (
        f"{begin}Nothing is predicted for {plural(workers, 'worker')} at batch {now.global_batch_size:,}."
    )
    if workers > now.global_batch_size:
        return f"{begin}A batch of {now.global_batch_size:,} samples has no work for {plural(workers, 'worker')}."
    if report is None:
        return unknown
    try:
        curve = report_from_document(report).curve
    except ValueError:
        return unknown
    here = None if curve is None else curve.find(now)
    there = None if curve is None else curve.find(replace(now, workers=workers))
    if curve is None or there is None or curve.relative_only:
        return unknown
    beside = ""
    if here is not None:
        beside = f", beside {duration(here.time_s)} and {money(here.cost_usd)} as it is"
    return (
        f"{begin}With {plural(workers, 'worker')} a whole run would take {duration(there.time_s)} "
        f"(90 %: {duration_range(*there.time_interval_s)}) and cost {money(there.cost_usd)} "
        f"(90 %: {money_range(*there.cost_interval_usd)}){beside}."
    )


def plan_facts(prepared: PreparedJob, earlier: JobRecord | None, path: Path) -> tuple[Fact, ...]:
    """What a submitted job would pay, search, profile, choose and run, as the command's `--dry-run` shows it."""
    shown = preview_rows(prepared, run=True, yes=True, earlier=earlier)
    return tuple(Fact(clean(name), clean(words)) for name, words in (*shown, ("job file", str(path))))
