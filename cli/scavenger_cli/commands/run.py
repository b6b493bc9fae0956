"""`optimize` and `plan`: options that override the job file, the preview of a dry run, and the run."""

from __future__ import annotations

import sys
from pathlib import Path

from scavenger.domain.overrides import Overrides
from scavenger_cli.commands.detaching import Detach, Questions, detach_job
from scavenger_cli.commands.driving import drive, refuse_to_ask_nobody
from scavenger_cli.commands.previewing import show_preview
from scavenger_cli.commands.remote import RemoteRun
from scavenger_cli.ui import console

__all__ = ["Detach", "Overrides", "execute"]

_PROFILE = "Rent VMs to profile on?"


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
    from scavenger.api.opening import server_source

    if (server := server_source(store_url)) is not None:
        with server as source:
            return _execute_remotely(
                RemoteRun(source, job_file, overrides, run=run, as_json=as_json),
                yes=yes,
                dry_run=dry_run,
                audit=audit,
                verbose=verbose,
                quiet=quiet,
                detach=detach,
            )
    from scavenger.api.preview import preview_of
    from scavenger.control.job_file.load import load_job, override_job
    from scavenger.control.jobs.platform import prepare_job

    prepared = prepare_job(override_job(load_job(job_file), overrides.changes()), job_file)
    if prepared.platform.aggregators is not None:
        from scavenger.control.jobs.aggregator_vms import settled
        from scavenger.store import Store

        with Store.open(store_url) as store:
            prepared = settled(prepared, store)
    if dry_run:
        show_preview(preview_of(prepared, run=run, yes=yes), as_json=as_json)
        return 0
    rents, on_vm = prepared.platform.rents, run and prepared.platform.leader is not None
    if run or rents:
        refuse_to_ask_nobody(yes=yes)
    if on_vm:
        from scavenger.control.leading.start import Start, check_start

        check_start(Start(prepared))
    if rents and not yes:
        show_preview(preview_of(prepared, run=run, yes=yes), stream=sys.stderr)
        question = "Rent VMs, and run the job there without another question?" if on_vm else _PROFILE
        if not console.ask(question):
            return 0
    if on_vm:
        from scavenger_cli.commands.leader import lead_on_vm

        return lead_on_vm(prepared, detach=detach, audit=audit, store_url=store_url, as_json=as_json)
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


def _execute_remotely(
    remote: RemoteRun,
    *,
    yes: bool,
    dry_run: bool,
    audit: bool,
    verbose: bool,
    quiet: bool,
    detach: Detach | None,
) -> int:
    """Have a server run the job, or say what it would do.

    Raises:
        ScavengerError: The server refuses it.
    """
    if dry_run:
        return remote.preview(yes=yes)
    return remote.submit(detach, yes=yes, audit=audit, verbose=verbose, quiet=quiet)
