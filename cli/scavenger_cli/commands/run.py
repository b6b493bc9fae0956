"""`optimize` and `plan`: options that override the job file, the preview of a dry run, and the run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scavenger.control.documents.preview import preview_rows
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import clean
from scavenger_cli.commands.detaching import Detach, Questions, detach_job
from scavenger_cli.commands.driving import drive, refuse_to_ask_nobody
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from scavenger.control.jobs.platform import PreparedJob

__all__ = ["Detach", "Overrides", "execute", "sizes"]


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values of the command line that override the job file; None where an option was not given."""

    objective: str | None = None
    strategy: str | None = None
    budget: str | None = None
    deadline: str | None = None
    workers: str | None = None
    batch_size: str | None = None

    def changes(self) -> dict[str, object]:
        """The overrides as keys and values of the job file.

        Raises:
            ConfigurationError: If sizes cannot be read; the message names the option.
        """
        from scavenger.domain.ranges import batch_sizes_of_text, workers_of_text

        given = {
            "objective": self.objective,
            "search.strategy": self.strategy,
            # shells eat a `$`, so it may be left out here
            "constraints.budget": None if self.budget is None else f"${self.budget.removeprefix('$')}",
            "constraints.deadline": self.deadline,
            "search.workers": sizes("--workers", self.workers, workers_of_text),
            "search.batch_size": sizes("--batch-size", self.batch_size, batch_sizes_of_text),
        }
        return {key: value for key, value in given.items() if value is not None}


def sizes(option: str, text: str | None, read: Callable[[str], list[int]]) -> list[int] | None:
    """Read the sizes that an option gives; None if it was not given.

    Raises:
        ConfigurationError: If they cannot be read; the message names the option.
    """
    try:
        return None if text is None else read(text)
    except ValueError as error:
        raise ConfigurationError(f"{option} {error}") from error


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
    verbose: bool = False,
    quiet: bool = False,
    detach: Detach | None = None,
) -> int:
    """Run the job, or only plan it, or submit it.

    Args:
        job_file: The job file.
        run: False to end with the choice.
        overrides: Values that replace those of the job file.
        yes: Whether every question is answered with yes.
        dry_run: Whether to show only what would be done.
        store_url: The database; None for the default.
        as_json: Whether the answer is a JSON document.
        audit: Whether to record which worker trained on which samples.
        verbose: Whether all notes are shown.
        quiet: Whether only warnings are shown while it runs.
        detach: How to submit it, to be run without this command; None to run it here.

    Returns:
        The exit code: the report's own.

    Raises:
        ScavengerError: The job cannot start.
    """
    from scavenger.control.job_file.load import load_job, override_job
    from scavenger.control.jobs.platform import prepare_job

    prepared = prepare_job(override_job(load_job(job_file), overrides.changes()), job_file)
    if dry_run:
        if as_json:
            console.emit_json(console.plain(_document(prepared, run=run, yes=yes)))
        else:
            _show_preview(prepared, run=run, yes=yes)
        return 0
    rents = prepared.platform.rents
    if run or rents:
        refuse_to_ask_nobody(yes=yes)
    if rents and not yes:
        _show_preview(prepared, run=run, yes=yes, renting_now=True)
        if not console.ask("Rent VMs to profile on?"):
            return 0
    from scavenger.control.jobs.job_run import JobRun

    if detach is not None:
        options = Questions(store_url, as_json, verbose, quiet)
        return detach_job(prepared, detach, options, ask=not yes, audit=audit)
    return drive(
        lambda store, observer, confirm: JobRun(
            prepared, store=store, observer=observer, run=run, confirm=confirm, audit=audit
        ),
        ask=run and not yes,
        store_url=store_url,
        as_json=as_json,
        verbose=verbose,
        quiet=quiet,
    )


def _show_preview(prepared: PreparedJob, *, run: bool, yes: bool, renting_now: bool = False) -> None:
    """Print the preview. Everything that is checked before a job starts has been checked by now.

    Args:
        renting_now: The preview is shown before the first VM is rented, and a question follows.
    """
    verb = "optimize" if run else "plan"
    title = f"About to {verb}" if renting_now else f"Would {verb}"
    grid = render.table((title, "left"), (clean(prepared.job.name), "left"))
    for name, words in preview_rows(prepared, run=run, yes=yes):
        grid.add_row(name, words)
    if not renting_now:
        grid.add_row("", "Nothing was started, and nothing was spent.")
    job_file = render.paths((("job file", str(prepared.job_file)),), indent=0, width=len(title))
    console.emit(grid, *job_file, stream=sys.stderr if renting_now else None)


def _document(prepared: PreparedJob, *, run: bool, yes: bool) -> dict[str, object]:
    """The preview as a JSON document."""
    job, platform, aggregators = prepared.job, prepared.platform, prepared.platform.aggregators
    return {
        "schema_version": console.SCHEMA_VERSION,
        "dry_run": True,
        "job": job.model_dump(mode="json"),
        "configurations": len(platform.space.configurations()),
        "offers": [
            {
                "vm": offer.vm,
                "provider": offer.provider,
                "region": offer.region,
                "price_usd_per_hour": offer.price_usd_per_hour,
                "price_source": offer.price_source,
                "spot": offer.spot,
            }
            for offer in platform.space.offers
        ],
        "aggregators": None
        if aggregators is None
        else {
            "vm": aggregators.vm,
            "count": job.elastic.aggregator_vms,
            "price_usd_per_hour": aggregators.price_usd_per_hour,
            "price_source": aggregators.price_source,
        },
        "notes": list(platform.notes),
        "profile": {
            "steps": job.profile.steps,
            "max_time_s": job.profile.max_time,
            "max_cost_usd": job.profile.max_cost,
        },
        "constraints": {"deadline_s": job.constraints.deadline, "budget_usd": job.constraints.budget},
        "runs": run,
        "asks": run and not yes,
    }
