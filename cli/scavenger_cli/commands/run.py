"""`optimize` and `plan`: what the command line says in place of the job file, and what a dry run tells."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scavenger_cli import console, render
from scavenger_cli.commands.driving import drive, refuse_to_ask_nobody
from scavenger_cli.formatting import clean, duration, money, plural

if TYPE_CHECKING:
    from scavenger.domain.job import JobSpec

__all__ = ["Overrides", "execute"]

SPELLED_OUT_MAX = 6
"""Values that are listed; more are told by their ends."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says in place of the job file; None where it says nothing."""

    objective: str | None = None
    strategy: str | None = None
    budget: str | None = None
    deadline: str | None = None

    def changes(self) -> dict[str, str]:
        """By the job file's keys, as it would write them."""
        said = {
            "objective": self.objective,
            "search.strategy": self.strategy,
            # shells eat a `$`, so it may be left out here
            "constraints.budget": None if self.budget is None else f"${self.budget.removeprefix('$')}",
            "constraints.deadline": self.deadline,
        }
        return {key: value for key, value in said.items() if value is not None}


def execute(
    job_file: Path,
    *,
    run: bool,
    overrides: Overrides,
    yes: bool,
    dry_run: bool,
    store_url: str | None,
    as_json: bool,
    audit: bool = False,
) -> int:
    """Run the job, or only plan it.

    Returns:
        The exit code: the report's own.

    Raises:
        ScavengerError: What kept the job from starting.
    """
    from scavenger.control.job_file.load import load_job, override_job

    job = override_job(load_job(job_file), overrides.changes())
    if dry_run:
        _show_dry_run(job, job_file, run=run, yes=yes, as_json=as_json)
        return 0
    rents = job.infra.provider != "local"
    if run or rents:
        refuse_to_ask_nobody(yes=yes)
    if rents and not yes:
        _show_dry_run(job, job_file, run=run, yes=yes, as_json=False, renting_now=True)
        if not console.ask("Rent VMs to profile on?"):
            return 0
    from scavenger.control.jobs.job_run import JobRun

    return drive(
        lambda store, observer, confirm: JobRun(
            job, job_file=job_file, store=store, observer=observer, run=run, confirm=confirm, audit=audit
        ),
        ask=run and not yes,
        store_url=store_url,
        as_json=as_json,
    )


def _show_dry_run(
    job: JobSpec, job_file: Path, *, run: bool, yes: bool, as_json: bool, renting_now: bool = False
) -> None:
    """Everything that is checked before a job starts is checked here too.

    Args:
        renting_now: It is shown before the first VM is paid for, and a question follows.
    """
    from scavenger.cloud.local import LocalCloud
    from scavenger.control.search.space import (
        check_keras_backend,
        check_supported,
        check_training_module,
        search_space,
    )

    check_supported(job)
    check_keras_backend(os.environ)
    check_training_module(job, job_file)
    renting = None
    if job.infra.provider == "local":
        space = search_space(job, LocalCloud())
    else:
        from scavenger.control.provisioning.cloud_resources import CloudResources

        renting = CloudResources(job)
        space = renting.space
    count = len(space.configurations())
    document = {
        "schema_version": console.SCHEMA_VERSION,
        "dry_run": True,
        "job": job.model_dump(mode="json"),
        "configurations": count,
        "offers": [
            {
                "vm": offer.vm,
                "provider": offer.provider,
                "region": offer.region,
                "price_usd_per_hour": offer.price_usd_per_hour,
                "price_source": offer.price_source,
                "spot": offer.spot,
            }
            for offer in space.offers
        ],
        "aggregators": None
        if renting is None
        else {
            "vm": renting.aggregators.vm,
            "price_usd_per_hour": renting.aggregators.price_usd_per_hour,
            "price_source": renting.aggregators.price_source,
        },
        "notes": [] if renting is None else list(renting.offered.notes),
        "profile": {
            "steps": job.profile.steps,
            "max_time_s": job.profile.max_time,
            "max_cost_usd": job.profile.max_cost,
        },
        "constraints": {"deadline_s": job.constraints.deadline, "budget_usd": job.constraints.budget},
        "runs": run,
        "asks": run and not yes,
    }
    if as_json:
        console.emit_json(console.plain(document))
        return
    verb = "optimize" if run else "plan"
    title = f"About to {verb}" if renting_now else f"Would {verb}"
    grid = render.table((title, "left"), (f"{job.name} ({job_file})", "left"))
    workers, batches = space.workers, space.global_batch_sizes
    grid.add_row(
        "search",
        f"{job.search.strategy}, among {plural(count, 'configuration')}: "
        f"K {_span(workers)}, B {_span(batches)}",
    )
    for offer in space.offers:
        price = f"{money(offer.price_usd_per_hour)} an hour each: {clean(offer.price_source)}"
        kind = ", spot" if offer.spot else ""
        grid.add_row("on", f"{clean(offer.vm)} ({job.infra}{kind}), {price}")
    if renting is not None:
        beside = renting.aggregators
        grid.add_row(
            "beside",
            f"1 {clean(beside.vm)} on demand for the aggregators, {money(beside.price_usd_per_hour)} an hour",
        )
        for note in renting.offered.notes:
            grid.add_row("", clean(note))
    profiling = _limits(job.profile.max_time, job.profile.max_cost)
    grid.add_row(
        "profile",
        f"{plural(job.profile.steps, 'step')} of each profiled configuration"
        + (f", {profiling} in all" if profiling else ""),
    )
    grid.add_row("choose", f"by {job.objective if isinstance(job.objective, str) else 'utility'}")
    if run:
        question = "without asking" if yes else "after asking, with the predicted time and cost"
        grid.add_row("run", f"{question}, until {_goal(job)}")
    grid.add_row(
        "limits", _limits(job.constraints.deadline, job.constraints.budget) or "no deadline, no budget"
    )
    if not renting_now:
        grid.add_row("", "Nothing was started, and nothing was spent.")
    console.emit(grid, stream=sys.stderr if renting_now else None)


def _goal(job: JobSpec) -> str:
    epochs = plural(job.goal.max_epochs, "epoch")
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
