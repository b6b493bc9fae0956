"""What a job would search, profile, choose and run: what is shown before it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from scavenger.api.values import Answer
from scavenger.domain.document import Document
from scavenger.domain.job import CheckpointSpec
from scavenger.errors import ConfigurationError
from scavenger.policy.leaders import what_is_lost, where_checkpoints_are
from scavenger.presentation.formatting import clean, duration, money, plural
from scavenger.presentation.total import total_words

if TYPE_CHECKING:
    from scavenger.control.jobs.prepared import PreparedJob
    from scavenger.control.places.place import Place
    from scavenger.domain.job import JobSpec
    from scavenger.policy.leaders import LeaderPlan
    from scavenger.store import Store
    from scavenger.store.records import JobRecord

_OF_AN_OFFER = ("vm", "provider", "region", "price_usd_per_hour", "price_source", "spot")
EARLIER_MAX = 50
"""Latest jobs of the same name among which one of the same job file is looked for."""
SPELLED_OUT_MAX = 6
"""Up to this many values are listed; of more, only the first and the last are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewAnswer(Answer):
    """What a job would do; see `scavenger optimize JOB.yaml --dry-run -o json`.

    Attributes:
        extras: What is paid for beside VM types, with its price for a unit and the price's source.
        leader: The VM that leads the job; null if it is led from here.
        checkpoints: Where and how often the training state is saved; null if no VM is rented.
        earlier: Id, state, `predicted` and `actual` of the latest plan or finished run of the same job file, with the
            same values; null if there is none.
        runs: False if it ends with the choice.
        asks: Whether it is asked for before it runs.
        refused: Why it is refused where nobody is asked, as by a server or with `--yes`; null if it is not.
        job_file: Path, as it was named.
        rows: Names and words of what is shown to people.
    """

    dry_run: bool
    job: Document
    configurations: int
    offers: tuple[Document, ...]
    aggregators: Document | None
    extras: tuple[Document, ...]
    leader: Document | None
    checkpoints: str | None
    notes: tuple[str, ...]
    profile: Document
    constraints: Document
    earlier: Document | None
    runs: bool
    asks: bool
    refused: str | None
    name: str
    job_file: str
    rows: tuple[tuple[str, str], ...]


def earlier_of(store: Store, prepared: PreparedJob, *, user: str | None) -> JobRecord | None:
    """The latest plan or finished run of the same job file with the same values; None if there is none.

    Its training code may have changed since: that is known only once a worker has read it.

    Args:
        user: Only among the jobs that this user submitted; None: among all.
    """
    spec, path = prepared.job.written(), str(prepared.job_file.absolute())
    states = ("planned", "succeeded", "target_missed")
    for one in store.jobs(EARLIER_MAX, states=states, name=prepared.job.name, user=user):
        if one.job_file == path and one.spec == spec and (one.actual or one.predicted):
            return store.job(one.id)
    return None


def expected_words(prepared: PreparedJob, earlier: JobRecord | None) -> str:
    """What is known of the dollars and the time of the whole, before its search."""
    if earlier is not None and earlier.actual is not None and earlier.state != "planned":
        came = f"{money(earlier.actual.cost_usd)} in {duration(earlier.actual.time_s)}"
        return f"about what the last run of this file paid: {came} (job {earlier.id[:8]})"
    if earlier is not None and earlier.predicted is not None:
        relative = bool(((earlier.report or {}).get("curve_info") or {}).get("relative_only"))
        words = total_words(earlier.predicted, relative_only=relative)
        return f"{words}; by plan {earlier.id[:8]} of this file"
    steps = plural(prepared.job.profile.steps, "step")
    return f"not known before the search, which measures {steps} of some configurations and predicts it from them"


def preview_rows(
    prepared: PreparedJob, *, run: bool, yes: bool, earlier: JobRecord | None = None
) -> Iterator[tuple[str, str]]:
    """What would be paid, searched, profiled, chosen and run, as rows of (name, text)."""
    job, place = prepared.job, prepared.place
    space, aggregators = place.space, place.aggregators
    yield "total", expected_words(prepared, earlier)
    if place.rents:
        yield "dollars", _dollars(prepared)
    configurations = plural(len(space.configurations()), "configuration")
    yield (
        "search",
        f"{job.search.strategy}, among {configurations}: "
        f"K {_span(space.workers)}, B {_span(space.global_batch_sizes)}",
    )
    for offer in space.offers:
        price = f"{money(offer.price_usd_per_hour)} an hour each: {clean(offer.price_source)}"
        yield "on", f"{clean(offer.vm)} ({job.infra}{', spot' if offer.spot else ''}), {price}"
    if aggregators is not None:
        vms = job.elastic.known_aggregator_vms
        hourly = f"{money(vms * aggregators.price_usd_per_hour)} an hour{'' if vms == 1 else ' in all'}"
        yield "and", f"{vms} {clean(aggregators.vm)} on demand for the aggregators, {hourly}"
        if job.elastic.beside_workers:
            yield "", "and one of them beside the workers of each VM, where the model is shared"
        if job.elastic.gradients == "bfloat16":
            yield (
                "",
                "gradients of large tensors are sent in bfloat16: half as many bytes; weights in single precision",
            )
        if job.elastic.aggregator_vms == "auto":
            yield (
                "",
                "more of them, or one beside the workers of each VM, if earlier runs show that it is worth it",
            )
    if place.leader is not None:
        leader = place.leader
        hourly = f"{money(leader.usd_per_hour)} an hour {leader.extras}".rstrip()
        yield "leader", f"1 {clean(leader.offer.vm)} on demand, {hourly}, since {leader.reason}"
        for line in leader_lines(job, leader):
            yield "", line
    for index, extra in enumerate(place.extras):
        yield "" if index else "besides", clean(str(extra))
    if place.old_prices:
        yield (
            "prices",
            f"{clean(place.old_prices)}: of this a terminal is asked, and elsewhere the job is refused",
        )
    for note in place.notes:
        yield "", clean(note)
    if place.rents:
        yield "checkpoints", clean(checkpoint_words(prepared))
    limits = _limits(job.profile.max_time, job.profile.max_cost)
    steps = f"{plural(job.profile.steps, 'step')} of each profiled configuration"
    yield "profile", steps + (f", {limits} in all" if limits else "")
    yield "choose", f"by {job.objective if isinstance(job.objective, str) else 'utility'}"
    if run:
        question = "without asking" if yes else "after asking, with the predicted time and cost"
        yield "run", f"{question}, until {_goal(job)}"
    yield "limits", _limits(job.constraints.deadline, job.constraints.budget) or "no deadline, no budget"


def _dollars(prepared: PreparedJob) -> str:
    """What the VMs of the smallest and the largest cluster cost an hour together, and what holds the whole."""
    job, place = prepared.job, prepared.place
    shared = 0.0 if place.leader is None else place.leader.usd_per_hour
    if place.aggregators is not None:
        shared += job.elastic.known_aggregator_vms * place.vm_usd_per_hour(place.aggregators)

    def hourly(workers: int, of: Callable[[Iterable[float]], float]) -> float:
        return shared + of(
            -(-workers // offer.workers_per_vm) * place.vm_usd_per_hour(offer) for offer in place.space.offers
        )

    least, most = place.space.workers[0], place.space.workers[-1]
    low, high = hourly(least, min), hourly(most, max)
    rate = f"{money(low)} an hour in all with {plural(least, 'worker')}"
    rate += f", {money(high)} with {most}" if high > low else ""
    budget = job.constraints.budget
    return f"{rate}; " + (
        f"{money(budget)} at most, the budget" if budget is not None else "no budget holds the whole"
    )


def checkpoint_words(prepared: PreparedJob) -> str:
    """Where and how often a job on a cloud saves its training state, and what is lost with which machine."""
    job = prepared.job
    plan = job.checkpoint or CheckpointSpec(path="")
    pace = f"every {duration(plan.every)}"
    if plan.every_steps is not None:
        pace += f" or {plural(plan.every_steps, 'step')}"
    here = str(prepared.folder / (plan.path or job.output))
    return where_checkpoints_are(plan.path, pace, here="" if prepared.place.leader is not None else here)


def leader_lines(job: JobSpec, leader: LeaderPlan) -> Iterator[str]:
    """What a user should know of a job that is led by a VM of its own."""
    checkpoint = job.checkpoint
    every_s = 600.0 if checkpoint is None else checkpoint.every
    yield f"if it is lost, so is {what_is_lost('' if checkpoint is None else checkpoint.path, every_s)}"
    yield (
        f"its result is fetched by this command, or `scavenger leader follow {job.name}` within "
        f"{duration(job.limits.leader)} of its end"
    )
    if job.constraints.budget is not None:
        yield f"{money(leader.usd_afterwards(job.limits.leader))} of the budget are set aside for that time"


def _goal(job: JobSpec) -> str:
    epochs = plural(job.goal.max_epochs, "epoch")
    if job.at_equal_progress:
        return f"{epochs} at batch {job.reference_batch_size} are done, or what makes as much progress at another batch"
    if job.goal.target is None:
        return f"{epochs} are done"
    return f"{job.goal.metric} reaches {job.goal.target}, or {epochs} are done"


def _span(values: tuple[int, ...]) -> str:
    if len(values) <= SPELLED_OUT_MAX:
        return ", ".join(map(str, values))
    return f"{values[0]} to {values[-1]} ({len(values)} values)"


def _limits(time_s: float | None, cost_usd: float | None) -> str:
    limits = [duration(time_s)] if time_s is not None else []
    limits += [money(cost_usd)] if cost_usd is not None else []
    return f"at most {' and '.join(limits)}" if limits else ""


def _refusal(place: Place) -> str | None:
    try:
        place.check_prices()
    except ConfigurationError as error:
        return str(error)
    return None


def preview_of(
    prepared: PreparedJob, *, run: bool, yes: bool, earlier: JobRecord | None = None
) -> PreviewAnswer:
    """What a job would do.

    Args:
        earlier: See `earlier_of`.
        run: False if it ends with the choice.
        yes: Whether every question is answered with yes.
    """
    job, place, aggregators = prepared.job, prepared.place, prepared.place.aggregators
    leader = place.leader
    return PreviewAnswer(
        dry_run=True,
        job=job.model_dump(mode="json"),
        configurations=len(place.space.configurations()),
        offers=tuple({name: getattr(offer, name) for name in _OF_AN_OFFER} for offer in place.space.offers),
        aggregators=None
        if aggregators is None
        else {
            "vm": aggregators.vm,
            "count": job.elastic.known_aggregator_vms,
            "price_usd_per_hour": aggregators.price_usd_per_hour,
            "price_source": aggregators.price_source,
        },
        extras=tuple(map(asdict, place.extras)),
        leader=None
        if leader is None
        else {
            "vm": leader.offer.vm,
            "price_usd_per_hour": leader.usd_per_hour,
            "price_source": leader.offer.price_source,
            "reason": leader.reason,
        },
        checkpoints=checkpoint_words(prepared) if place.rents else None,
        notes=tuple(place.notes),
        profile={
            "steps": job.profile.steps,
            "max_time_s": job.profile.max_time,
            "max_cost_usd": job.profile.max_cost,
        },
        constraints={"deadline_s": job.constraints.deadline, "budget_usd": job.constraints.budget},
        earlier=None
        if earlier is None
        else {
            "job_id": earlier.id,
            "state": earlier.state,
            "predicted": None if earlier.predicted is None else asdict(earlier.predicted),
            "actual": None if earlier.actual is None else asdict(earlier.actual),
        },
        runs=run,
        asks=run and not yes,
        refused=_refusal(place),
        name=job.name,
        job_file=str(prepared.job_file),
        rows=tuple(preview_rows(prepared, run=run, yes=yes, earlier=earlier)),
    )
